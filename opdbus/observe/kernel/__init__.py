"""Observers of the kernel: modules, sysctls, devices, mounts and file systems.

Owns the uevent socket. Imports the core and systemd.
"""
