"""Sampled minibatches in a loop of one's own, on any number of ranks:

siafu partition planted planted.parts --parts 2
torchrun --standalone --nproc-per-node 2 examples/03_minibatches.py planted.parts
"""

import sys

import torch
from torch.nn.functional import cross_entropy
from torch_geometric.nn import GraphSAGE

import siafu

if len(sys.argv) != 2:
    sys.exit(__doc__)
with siafu.World.join() as world:
    shard = siafu.open_shard(sys.argv[1], world, place="host")
    torch.manual_seed(0)
    model = GraphSAGE(shard.x.size(1), 32, num_layers=2, out_channels=shard.num_classes)
    model = model.to(world.device)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    with siafu.MinibatchLoader(shard, [10, 5], batch_size=50, input_nodes=shard.train) as loader:
        for epoch in range(1, 6):
            right = torch.zeros(2, device=world.device)
            for batch in loader:
                batch = batch.to(world.device)
                optimiser.zero_grad()
                if batch.batch_size:  # a rank may have less to do than others
                    out = model(batch.x, batch.edge_index)[: batch.batch_size]
                    cross_entropy(out, batch.y).backward()
                    right[0] += (out.argmax(1) == batch.y).sum()
                    right[1] += batch.batch_size
                loader.average_gradients(model, batch.batch_size)
                optimiser.step()
            right = world.sum_in_place(right, "metric")
            if world.rank == 0:
                print(f"epoch {epoch} train accuracy {right[0] / right[1]:.3f}")
