"""Bias, ReLU and dropout in one pass, forward and backward."""
