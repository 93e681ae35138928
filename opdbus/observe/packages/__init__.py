"""Observer of packages: dpkg, rpm, runs of apt, and the documents that packages bring.

Owns nothing but what it reads. Imports the core of observe.
"""
