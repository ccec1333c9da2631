"""Pools of stateless workers, one file per kind: threads, processes, Ray, a simulated cloud.

`pool.py` says what every pool can do, with the simplest one beside it. A new pool is a class like
`LocalPool` in a file here, a maker in `siafu.elastic.open`, and its name in `Strategy.pool`. Pools
on other machines that fetch their tasks over a socket are like `siafu.elastic.aws_lambda`.
"""
