"""Train any graph neural network on one big graph over many ranks, exactly by default."""
