"""Moving rows between ranks, differentiably, counted, with deadlines.

The only user of torch.distributed.
"""
