"""neap: run programs on a malloc that gives memory back, and analyse memory.

The command `neap` comes with this package; `python -m neap run script.py` runs a script by this Python on neap.
"""
__version__ = "@VERSION@"
