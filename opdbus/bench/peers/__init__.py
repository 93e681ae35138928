"""Other programs that embed texts, each a script that runs in a virtual environment of its own.

A script has `PACKAGES`, whose versions are told, and `load`. It can import nothing of ours.
"""
