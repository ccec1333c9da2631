"""Parity: a step over several ranks equals one process."""
