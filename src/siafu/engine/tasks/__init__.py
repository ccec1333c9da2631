"""What is learnt from a dynamic graph: of nodes, edges, links or a signal."""
