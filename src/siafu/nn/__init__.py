"""Layers and models written as if one device held the graph.

The Neighbours protocol and the PyG adapter are here.
"""
