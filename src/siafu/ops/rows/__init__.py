"""Rows of a table gathered by number, wherever the table lies."""
