"""Functions in AWS Lambda as a pool.

`pool.py` calls the function, `handler.py` is what runs there, and `endpoint.py` is the socket on
the rank where it fetches its task and pushes the result.
"""
