"""Sampling in-edges by address.

`positions` is what others call; `reference` is the definition, and `numba` gives the same numbers
(`numba_weighted` where edges have weights).
"""
