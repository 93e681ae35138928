"""Observers of the network: interfaces, addresses, routes and open ports.

Owns a netlink socket. Imports the core, packages, systemd and kernel.
"""
