"""Differences between two snapshots of a graph: found, applied, encoded, and streamed to a GPU.

`edges` is a delta and what it does to a matrix, `wire` its bytes, `stream` a walk over snapshots on
a device. Kernels are in `reference` (plain torch) and `numba`.
"""
