"""Training a PyG model on one process: python examples/01_one_process.py"""

import torch
from net import Net
from torch.nn.functional import cross_entropy

import siafu

graph = siafu.load("planted")
x, y, train = (torch.tensor(array) for array in (graph.x, graph.y, graph.train))
edge_index = torch.tensor(graph.edge_index())
torch.manual_seed(0)
model = Net(graph.num_features, graph.num_classes)
optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(1, 21):
    optimiser.zero_grad()
    loss = cross_entropy(model(x, edge_index)[train], y[train], reduction="none").mean()
    loss.backward()
    optimiser.step()
    if epoch % 5 == 0:
        print(f"epoch {epoch} loss {loss.item():.6f}")
