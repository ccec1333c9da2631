"""Timestamped events, of any source, as a dynamic graph.

`tables`, `npz` and `pyg` read a source into `Events`; `times` and `graph` cut those into snapshots;
`load` picks the reader.
"""
