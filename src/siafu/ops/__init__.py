"""Numeric kernels on CPU and CUDA, each beside the slow reference that defines it.

They know tensors, not graphs or ranks.
"""
