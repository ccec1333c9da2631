"""Models bound to a shard: over the whole graph, on minibatches, or in a pipeline."""
