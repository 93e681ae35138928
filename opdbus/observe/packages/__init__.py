"""Observer of packages: dpkg, rpm, runs of apt, and documents that packages install.

Reads files only and writes none. Imports the core of observe.
"""
