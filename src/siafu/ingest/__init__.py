"""Turning foreign files and objects into a store, once; the built-in data sets."""
