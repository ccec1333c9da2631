"""Edges as compressed rows: the matrix, sums and maxima over neighbours, GCN's scales.

`matrix` is the sparse matrix, `sum` and `maximum` reduce over it, and `gcn` normalises. Their
kernels are in `reference` (plain torch), `numba` and `triton`; `kernels` chooses between them.
"""
