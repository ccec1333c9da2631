"""Lightning's Fabric over sampled minibatches, on any number of ranks (pip install lightning):

siafu partition planted planted.parts --parts 2
torchrun --standalone --nproc-per-node 2 examples/04_fabric.py planted.parts

Fabric places model and batches, chooses precision and clips; siafu samples over ranks and adds
their gradients up, so that Fabric has one device per process and no strategy of its own.
"""

import sys

import torch
from lightning.fabric import Fabric
from torch.nn.functional import cross_entropy
from torch_geometric.nn import GraphSAGE

import siafu

if len(sys.argv) != 2:
    sys.exit(__doc__)
with siafu.World.join() as world:
    fabric = Fabric(accelerator=world.device.type, devices=1, precision="32-true")
    fabric.seed_everything(0)
    shard = siafu.open_shard(sys.argv[1], world, place="host")
    model = GraphSAGE(shard.x.size(1), 32, num_layers=2, out_channels=shard.num_classes)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    model, optimiser = fabric.setup(model, optimiser)
    with siafu.MinibatchLoader(shard, [10, 5], batch_size=50, input_nodes=shard.train) as loader:
        for epoch in range(1, 6):
            right = torch.zeros(2, device=fabric.device)
            for batch in loader:
                batch = fabric.to_device(batch)
                optimiser.zero_grad()
                if batch.batch_size:  # a rank may have less to do than others
                    out = model(batch.x, batch.edge_index)[: batch.batch_size]
                    fabric.backward(cross_entropy(out, batch.y))
                    right[0] += (out.argmax(1) == batch.y).sum()
                    right[1] += batch.batch_size
                loader.average_gradients(model, batch.batch_size)
                fabric.clip_gradients(model, optimiser, max_norm=1.0)
                optimiser.step()
            right = world.sum_in_place(right, "metric")
            if world.rank == 0:
                print(f"epoch {epoch} train accuracy {right[0] / right[1]:.3f}")
