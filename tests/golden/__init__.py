"""Losses that a fixed seed must still give."""
