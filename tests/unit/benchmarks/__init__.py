"""The tools that benchmarks share."""
