"""The same on several ranks, with the same losses:

siafu partition planted planted.parts --parts 2
torchrun --standalone --nproc-per-node 2 examples/02_many_ranks.py planted.parts
"""

import sys

import torch
from net import Net
from torch.nn.functional import cross_entropy

import siafu

if len(sys.argv) != 2:
    sys.exit(__doc__)
with siafu.World.join() as world:
    shard = siafu.open_shard(sys.argv[1], world)
    x, y, train = shard.x, shard.y, shard.train
    torch.manual_seed(0)
    model = siafu.parallelize(Net(x.size(1), shard.num_classes).to(world.device), shard)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(1, 21):
        optimiser.zero_grad()
        loss = shard.mean(cross_entropy(model(x)[train], y[train], reduction="none"))
        loss.backward()
        optimiser.step()
        if epoch % 5 == 0 and world.rank == 0:
            print(f"epoch {epoch} loss {loss.item():.6f}")
