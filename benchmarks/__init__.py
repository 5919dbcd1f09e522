"""Measurements of speed, here and beside peers; `scripts/bench.py` runs them.

Not part of the installed package.
"""
