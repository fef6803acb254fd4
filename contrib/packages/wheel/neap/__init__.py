"""neap: run programs on a malloc that gives memory back, and ask where pages went.

The command `neap` comes with this package; `python -m neap run script.py` runs a script by this Python on neap.
"""
__version__ = "@VERSION@"
