"""Tables, Parquet or CSV, as a store, in bounded memory.

`files` reads pieces of a table, `columns`, `ids` and `classes` make arrays of them, `nodes` and
`edges` are the two tables of a graph, and `build` puts a store together with `store_builder`.
"""
