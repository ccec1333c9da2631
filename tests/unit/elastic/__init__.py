"""Tensor tasks and the pools that run them."""
