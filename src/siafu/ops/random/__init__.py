"""Random numbers by address, with Philox: draws by node or edge, and dropout.

`draws` is what others call; `reference` (plain torch), `numba` and `triton` give the same bits.
"""
