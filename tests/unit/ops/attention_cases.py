"""Inputs of every kind of attention, gradients by name, and how results are compared."""

import torch

from siafu.ops import CSR, DotProduct, DrawKey, EdgeDraw, Gat, GatV2

KINDS = {"gat": Gat(0.2), "gatv2": GatV2(0.2), "dot": DotProduct(0.4)}

FLOAT64 = {"rtol": 1e-11, "atol": 1e-11}
FLOAT32 = {"rtol": 1e-4, "atol": 2e-4}
"""A hub's 1500 terms, and a gradient is the small difference of two such sums."""


def make_csr(degrees, num_cols, *, seed=0, dtype=torch.int32):
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), torch.tensor(degrees).cumsum(0)])
    generator = torch.Generator().manual_seed(seed)
    # the last column stays unread, so its gradient must be 0
    high = max(1, num_cols - 1)
    index = torch.randint(0, high, (int(indptr[-1]),), generator=generator, dtype=dtype)
    return CSR(indptr, index, num_cols)


def inputs_of(kind, csr, heads, width, *, dtype=torch.float64, edge=False, scale=1.0):
    """Return the operands by role and place, as `call` takes them."""
    generator = torch.Generator().manual_seed(1)
    sizes = {"M": csr.num_rows, "C": csr.num_cols, "E": csr.num_edges, "H": heads, "D": width}

    def draw(name, factor=1.0):
        shape = [sizes[letter] for letter in name.rsplit("_", 1)[1]]
        values = factor * torch.randn(*shape, generator=generator, dtype=torch.float64)
        return values.to(csr.device, dtype).requires_grad_()

    inputs = {f"sources {k}": draw(name) for k, name in enumerate(kind.sources)}
    inputs |= {f"rows {k}": draw(name, scale) for k, name in enumerate(kind.rows)}
    inputs |= {f"shared {k}": draw(name) for k, name in enumerate(kind.shared)}
    return inputs | ({"edge": draw(kind.edge)} if edge else {})


def draw_of(csr, p=0.4, seed=3):
    generator = torch.Generator().manual_seed(seed)
    ids = [torch.randint(0, 2**48, (n,), generator=generator) for n in (csr.num_cols, csr.num_rows)]
    return EdgeDraw(DrawKey(seed=seed, epoch=7, purpose=1), p, *(i.to(csr.device) for i in ids))


def role(inputs, name):
    return tuple(value for key, value in inputs.items() if key.startswith(name))


def call(function, kind, csr, inputs, **options):
    groups = (role(inputs, name) for name in ("sources", "rows", "shared"))
    return function(kind, csr, *groups, edge=inputs.get("edge"), **options)


def detached(inputs):
    return {name: value.detach() for name, value in inputs.items()}


def grad_like(out):
    generator = torch.Generator().manual_seed(5)
    return torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out)


def with_gradients(function, kind, csr, inputs, **options):
    """Return the output and the gradient of every input, by name."""
    out = call(function, kind, csr, inputs, **options)
    # without rows, the definition reads only one source
    grads = torch.autograd.grad(out, [*inputs.values()], grad_like(out), materialize_grads=True)
    return {"out": out.detach(), **dict(zip(inputs, grads, strict=True))}


def assert_equal(got, want, **bounds):
    assert got.keys() == want.keys()
    for name, value in want.items():
        torch.testing.assert_close(
            got[name], value, **bounds, msg=lambda text, name=name: f"{name}: {text}"
        )
