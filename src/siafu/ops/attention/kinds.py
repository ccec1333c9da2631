"""The kinds of attention, what each reads, and the definition of them all.

    Gat          score = leaky_relu(left_j + right_i [+ edge_e]);        value = z_j
    GatV2        score = <att, leaky_relu(x_j + x_i [+ edge_e])>;        value = x_j
    DotProduct   score = scale * <query_i, key_j [+ edge_e]>;            value = value_j [+ edge_e]

    out_i = sum over the edges e, from j to i, of softmax(score) * value, for each head

Velickovic et al., 2018; Brody et al., 2022; Shi et al., 2021. Edge terms are PyG's.

Shapes: M destination rows, C source columns, E edges, H heads, D width of a head.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from siafu.errors import PlanError
from siafu.ops.attention.softmax import EdgeDraw, SoftmaxState
from siafu.ops.contract import Kind, sum_type
from siafu.ops.csr.matrix import CSR
from siafu.ops.random.draws import dropout_pairs

Tensors = tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Gat:
    """Scores are sums of a number for each end, bent by leaky_relu."""

    slope: float

    name: ClassVar = Kind.GAT
    sources: ClassVar = ("z_CHD", "left_CH")
    rows: ClassVar = ("right_MH",)
    shared: ClassVar[tuple[str, ...]] = ()
    edge: ClassVar = "edge_EH"


@dataclass(frozen=True, slots=True)
class GatV2:
    """Scores weigh the bent sum of both ends' vectors, so that each row has its own ranking."""

    slope: float

    name: ClassVar = Kind.GATV2
    sources: ClassVar = ("x_CHD",)
    rows: ClassVar = ("x_MHD",)
    shared: ClassVar = ("att_HD",)
    edge: ClassVar = "edge_EHD"


@dataclass(frozen=True, slots=True)
class DotProduct:
    """Scores are products of a row's query with a source's key."""

    scale: float

    name: ClassVar = Kind.DOT
    sources: ClassVar = ("key_CHD", "value_CHD")
    rows: ClassVar = ("query_MHD",)
    shared: ClassVar[tuple[str, ...]] = ()
    edge: ClassVar = "edge_EHD"


Attention = Gat | GatV2 | DotProduct


def factor_of(kind: Attention) -> float:
    """Return the one number a kind is set by."""
    return kind.scale if isinstance(kind, DotProduct) else kind.slope


def attend_reference(
    kind: Attention,
    csr: CSR,
    sources: Tensors,
    rows: Tensors,
    shared: Tensors = (),
    *,
    edge: Tensor | None = None,
    drop: EdgeDraw | None = None,
) -> Tensor:
    """The definition, one destination at a time. Slow; used by tests alone."""
    out = [sources[0][:0]]
    for i, (lo, hi) in enumerate(pairwise(csr.indptr.tolist())):
        j = csr.index[lo:hi].long()
        term = None if edge is None else edge[lo:hi]
        near = tuple(t[j] for t in sources)
        score_EH, value_EHD = _scores_and_values(
            kind, near, tuple(t[i] for t in rows), shared, term
        )
        weight_EH = score_EH.softmax(dim=0)
        if drop is not None:
            ids = drop.ids_C[j], drop.ids_M[i].expand(hi - lo)
            padded = functional.pad(weight_EH, (drop.first_head, 0))
            weight_EH = dropout_pairs(padded, *ids, drop.key, drop.p)[:, drop.first_head :]
        out.append((weight_EH[:, :, None] * value_EHD).sum(dim=0, keepdim=True))
    return torch.cat(out)


def _scores_and_values(
    kind: Attention, sources: Tensors, row: Tensors, shared: Tensors, edge: Tensor | None
) -> tuple[Tensor, Tensor]:
    term = 0 if edge is None else edge
    match kind:
        case Gat(slope):
            return functional.leaky_relu(sources[1] + row[0] + term, slope), sources[0]
        case GatV2(slope):
            bent_EHD = functional.leaky_relu(sources[0] + row[0] + term, slope)
            return (bent_EHD * shared[0]).sum(dim=2), sources[0]
        case DotProduct(scale):
            return scale * (row[0] * (sources[0] + term)).sum(dim=2), sources[1] + term


def check_inputs(
    kind: Attention,
    csr: CSR,
    sources: Tensors,
    rows: Tensors,
    shared: Tensors,
    *,
    edge: Tensor | None,
    drop: EdgeDraw | None,
) -> None:
    """Raise unless every input fits the edges and the first source tensor."""
    first = _checked_first(kind, csr, sources)
    sizes = {"M": csr.num_rows, "C": csr.num_cols, "E": csr.num_edges}
    sizes |= {"H": first.size(1), "D": first.size(2)}
    for role, names, given in (
        ("sources", kind.sources, sources),
        ("rows", kind.rows, rows),
        ("shared", kind.shared, shared),
    ):
        if len(given) != len(names):
            raise PlanError(
                f"{kind} takes other {role}.",
                seen=f"{len(given)} tensors",
                fix=f"pass ({', '.join(names)})",
            )
        # weights that all edges share are not rows
        check = check_summed if role == "shared" else check_tensor
        for name, tensor in zip(names, given, strict=True):
            check(name, tensor, first, _shape_of(name, sizes))
    if edge is not None:
        types = first.dtype, sum_type(first.dtype)
        _check(kind.edge, edge, first, _shape_of(kind.edge, sizes), types)
    _check_drop(csr, drop)


def check_state(state: SoftmaxState, num_rows: int, first: Tensor) -> None:
    """Raise unless the state has a row for each destination, and the shape and type of `first`."""
    heads, width = first.shape[1:]
    check_summed("state.top_MH", state.top_MH, first, (num_rows, heads))
    check_summed("state.weight_MH", state.weight_MH, first, (num_rows, heads))
    check_summed("state.total_MHD", state.total_MHD, first, (num_rows, heads, width))


def check_tensor(name: str, tensor: Tensor, like: Tensor, shape: tuple[int, ...]) -> None:
    """Raise unless a tensor has the shape, and the type and device of `like`."""
    _check(name, tensor, like, shape, (like.dtype,))


def check_summed(name: str, tensor: Tensor, like: Tensor, shape: tuple[int, ...]) -> None:
    """Raise unless a tensor has the shape, the device, and the type that `like` is summed in."""
    _check(name, tensor, like, shape, (sum_type(like.dtype),))


def _check(
    name: str,
    tensor: Tensor,
    like: Tensor,
    shape: tuple[int, ...],
    types: tuple[torch.dtype, ...],
) -> None:
    if tensor.shape != shape or tensor.dtype not in types or tensor.device != like.device:
        raise PlanError(
            f"{name} does not fit.",
            seen=f"{tuple(tensor.shape)} {tensor.dtype} on {tensor.device}",
            fix=f"pass shape {tuple(shape)} of {types[0]} on {like.device}",
        )


def check_added_to(role: str, given: Tensors, like: Tensors) -> None:
    """Raise unless tensors that gradients are added to are shaped as what they are gradients of."""
    if len(given) != len(like):
        raise PlanError(
            f"{role} has another number of tensors.",
            seen=str(len(given)),
            fix=f"pass {len(like)} tensors of zeros",
        )
    for tensor, other in zip(given, like, strict=True):
        _check(role, tensor, other, tuple(other.shape), (other.dtype, sum_type(other.dtype)))
        if not tensor.is_contiguous():
            raise PlanError(
                f"{role} is added to in place and must have no gaps.",
                seen=f"strides {tensor.stride()}",
                fix="pass a tensor made by torch.zeros",
            )


def _checked_first(kind: Attention, csr: CSR, sources: Tensors) -> Tensor:
    first = sources[0] if sources else None
    fits = first is not None and first.dim() == 3 and len(first) == csr.num_cols
    if first is None or not fits or first.device != csr.device:
        seen = "no tensor" if first is None else f"{tuple(first.shape)} on {first.device}"
        raise PlanError(
            f"{kind.sources[0]} does not fit the edges.",
            seen=f"{seen}; {csr.num_cols} columns on {csr.device}",
            fix="pass [columns, heads, width], on the device of the edges",
        )
    return first


def _shape_of(name: str, sizes: dict[str, int]) -> tuple[int, ...]:
    """Return the shape that a name's letters spell."""
    return tuple(sizes[letter] for letter in name.rsplit("_", 1)[1])


def _check_drop(csr: CSR, drop: EdgeDraw | None) -> None:
    """Raise unless there is an int64 id for every column and row, on the device of the edges."""
    if drop is None:
        return
    for name, ids, length in (
        ("ids_C", drop.ids_C, csr.num_cols),
        ("ids_M", drop.ids_M, csr.num_rows),
    ):
        if ids.shape != (length,) or ids.dtype != torch.int64 or ids.device != csr.device:
            raise PlanError(
                f"{name} does not fit the edges.",
                seen=f"{tuple(ids.shape)} {ids.dtype} on {ids.device}",
                fix=f"pass {length} global ids as int64 on {csr.device}",
            )
