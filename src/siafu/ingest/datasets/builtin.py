"""Synthetic graphs made from a seed, at any size: `planted`, `powerlaw` and `relations`.

N nodes, E edges, C classes, F features.
"""

import re
from collections.abc import Callable

import numpy as np

from siafu.errors import DataError
from siafu.graph import Array, Graph, IntegerIds, draw_split, graph_from_edges, index_dtype
from siafu.memory import Budget

_CHUNK = 1 << 20
_SIZE = re.compile(r"(\d{1,15})([km]?)", re.IGNORECASE)
_SUFFIX = {"": 1, "k": 1_000, "m": 1_000_000}
_DRAWN_SPLIT = "0.6,0.2"
_HUB_EXPONENT = 0.6
"""Node of rank r is drawn with a chance proportional to r ** -0.6."""

_RELATIONS = ("same", "next", "previous")
"""By how far the source's class is ahead of the destination's: 0, 1, 2 (mod 3)."""
_NODE_BYTES = {"planted": 450, "powerlaw": 450, "relations": 1400}
"""What a node takes while a graph is made; 419, 406 and 1,332 bytes were seen for 600 k nodes."""

PairMaker = Callable[[np.random.Generator, int], tuple[Array, Array]]
"""Draw this many pairs and return their two ends."""


def planted(
    num_nodes: int = 2_000,
    *,
    num_classes: int = 7,
    mean_degree: int = 12,
    width: int = 32,
    homophily: float = 0.6,
    signal: float = 0.27,
    seed: int = 0,
) -> Graph:
    """Return communities whose features alone are too noisy to tell them apart.

    A fraction `homophily` of the edges stays inside a community and the others end anywhere. The
    features are unit noise around a class centre whose entries have deviation `signal`, so one
    node says little and the mean over its neighbours says much.
    """
    _check_size(num_nodes, smallest=num_classes)
    generator = np.random.default_rng([seed, 1])
    y = generator.integers(num_classes, size=num_nodes)
    members = np.argsort(y, kind="stable")
    sizes = np.bincount(y, minlength=num_classes)
    starts = np.cumsum(sizes) - sizes

    def draw_pairs(generator: np.random.Generator, count: int) -> tuple[Array, Array]:
        left = generator.integers(num_nodes, size=count)
        anywhere = generator.integers(num_nodes, size=count)
        group = y[left]
        inside = members[starts[group] + (generator.random(count) * sizes[group]).astype(np.int64)]
        return left, np.where(generator.random(count) < homophily, inside, anywhere)

    indptr, src = _join(draw_pairs, num_nodes, num_nodes * mean_degree // 2, generator)
    graph = Graph(
        name="planted",
        indptr=indptr,
        src=src,
        ids=IntegerIds(np.arange(num_nodes)),
        x=_noisy_centres(y, num_classes, width, signal, generator),
        y=y,
        num_classes=num_classes,
    )
    return draw_split(graph, _DRAWN_SPLIT, seed)


def powerlaw(
    num_nodes: int = 10_000,
    *,
    num_classes: int = 8,
    mean_degree: int = 12,
    width: int = 32,
    homophily: float = 0.7,
    seed: int = 0,
) -> Graph:
    """Return a graph with a few hubs, a long tail and some nodes without any edge.

    One node in twenty is isolated. Repeated pairs are kept once, so the mean degree comes out
    a little under `mean_degree`.
    """
    _check_size(num_nodes, smallest=2 * num_classes)
    generator = np.random.default_rng([seed, 2])
    row_of_rank = generator.permutation(num_nodes)
    y = np.empty(num_nodes, dtype=np.int64)
    y[row_of_rank] = np.arange(num_nodes) % num_classes
    # A whole number of rounds over the classes, so that a rank moved inside its round stays valid.
    num_joined = max(1, (num_nodes - num_nodes // 20) // num_classes) * num_classes

    def draw_ranks(generator: np.random.Generator, count: int) -> Array:
        ranks = num_joined * generator.random(count) ** (1 / (1 - _HUB_EXPONENT))
        return ranks.astype(np.int64)

    def draw_pairs(generator: np.random.Generator, count: int) -> tuple[Array, Array]:
        left, right = draw_ranks(generator, count), draw_ranks(generator, count)
        inside = right - right % num_classes + left % num_classes
        right = np.where(generator.random(count) < homophily, inside, right)
        return row_of_rank[left], row_of_rank[right]

    indptr, src = _join(draw_pairs, num_nodes, num_nodes * mean_degree // 2, generator)
    graph = Graph(
        name="powerlaw",
        indptr=indptr,
        src=src,
        ids=IntegerIds(np.arange(num_nodes)),
        x=_noisy_centres(y, num_classes, width, 0.27, generator),
        y=y,
        num_classes=num_classes,
    )
    return draw_split(graph, _DRAWN_SPLIT, seed)


def relations(
    num_nodes: int = 2_000,
    *,
    mean_degree: int = 12,
    width: int = 32,
    homophily: float = 0.7,
    signal: float = 0.15,
    seed: int = 0,
) -> Graph:
    """Return a graph of three classes and three edge types, which labels need.

    An edge of type r into a node of class c starts at class c + r (mod 3) in a fraction
    `homophily` of the cases, else anywhere. All types together, a node's neighbours are of all
    classes alike: a model that ignores types learns nothing from them. Features are as in
    `planted`. Edges have one direction; repeated ones and loops are left out.
    """
    num_classes = len(_RELATIONS)
    _check_size(num_nodes, smallest=4 * num_classes)
    generator = np.random.default_rng([seed, 3])
    y = generator.permutation(np.arange(num_nodes) % num_classes)
    members = np.argsort(y, kind="stable")
    sizes = np.bincount(y)
    starts = np.cumsum(sizes) - sizes

    num_edges = num_nodes * mean_degree
    dst = generator.integers(num_nodes, size=num_edges)
    edge_type = generator.integers(num_classes, size=num_edges)
    anyone = generator.integers(num_classes, size=num_edges)
    ruled = generator.random(num_edges) < homophily
    group = np.where(ruled, (y[dst] + edge_type) % num_classes, anyone)
    src = members[starts[group] + (generator.random(num_edges) * sizes[group]).astype(np.int64)]
    key = np.unique((dst * num_nodes + src)[src != dst] * num_classes + edge_type[src != dst])
    pair, edge_type = np.divmod(key, num_classes)
    graph = graph_from_edges(
        pair % num_nodes,
        pair // num_nodes,
        num_nodes,
        name="relations",
        x=_noisy_centres(y, num_classes, width, signal, generator),
        y=y,
        num_classes=num_classes,
        edge_type=edge_type,
        edge_type_names=_RELATIONS,
    )
    return draw_split(graph, _DRAWN_SPLIT, seed)


BUILTINS: dict[str, Callable[..., Graph]] = {
    "planted": planted,
    "powerlaw": powerlaw,
    "relations": relations,
}


def is_builtin(name: str) -> bool:
    """Return whether the name, with or without a size, is one of the built-in graphs."""
    return name.partition(":")[0] in BUILTINS


def load_builtin(name: str, seed: int = 0, budget: Budget | None = None) -> Graph:
    """Return the graph named `planted`, `planted:100000`, `powerlaw:20k`, `powerlaw:3m` ..."""
    kind, colon, size = name.partition(":")
    if not colon:
        return BUILTINS[kind](seed=seed)
    match = _SIZE.fullmatch(size)
    if match is None:
        raise DataError(
            "The size of a built-in graph is not understood.",
            seen=name,
            fix=f"give the number of nodes, for example {kind}:5000, {kind}:100k or {kind}:2m",
        )
    num_nodes = int(match[1]) * _SUFFIX[match[2].lower()]
    check_room(name, num_nodes, _NODE_BYTES[kind], budget)
    return BUILTINS[kind](num_nodes, seed=seed)


def check_room(name: str, num_nodes: int, node_bytes: int, budget: Budget | None = None) -> None:
    """Raise where a built-in graph would not fit in memory, before it is made."""
    budget = budget or Budget()
    need, free = num_nodes * node_bytes, budget.free
    if need > free:
        raise DataError(
            "The built-in graph would not fit in memory.",
            seen=f"{name}: some {need:,} bytes, {free:,} are available",
            fix=budget.fix(need, f"ask for at most {free // node_bytes:,} nodes"),
        )


def _check_size(num_nodes: int, *, smallest: int) -> None:
    if num_nodes < smallest:
        raise DataError(
            "The built-in graph is too small.",
            seen=f"{num_nodes} nodes",
            fix=f"ask for {smallest} or more",
        )


def _noisy_centres(
    y: Array, num_classes: int, width: int, signal: float, generator: np.random.Generator
) -> Array:
    """Return x_NF float32: one random centre a class, plus unit noise for each node."""
    centres_CF = (signal * generator.standard_normal((num_classes, width))).astype(np.float32)
    x_NF = generator.standard_normal((len(y), width), dtype=np.float32)
    for start in range(0, len(y), _CHUNK):
        x_NF[start : start + _CHUNK] += centres_CF[y[start : start + _CHUNK]]
    return x_NF


def _join(
    draw_pairs: PairMaker, num_nodes: int, num_pairs: int, generator: np.random.Generator
) -> tuple[Array, Array]:
    """Return the CSR of the drawn pairs, both directions, each once and without self loops.

    An edge is one integer, dst * N + src, sorted in place: beside the result only these exist.
    """
    key_of_edge = np.empty(2 * num_pairs, dtype=np.int64)
    for start in range(0, num_pairs, _CHUNK):
        count = min(_CHUNK, num_pairs - start)
        left, right = draw_pairs(generator, count)
        loops = left == right
        into = key_of_edge[2 * start : 2 * (start + count)].reshape(2, count)
        into[0], into[1] = left * num_nodes + right, right * num_nodes + left
        into[:, loops] = -1
    key_of_edge.sort()
    return _unpack(key_of_edge, num_nodes)


def _unpack(key_of_edge: Array, num_nodes: int) -> tuple[Array, Array]:
    """Return indptr and src of sorted edge keys, leaving out repeated and negative ones."""
    counts = np.zeros(num_nodes + 1, dtype=np.int64)
    pieces: list[Array] = []
    last = np.int64(-1)
    for start in range(0, len(key_of_edge), _CHUNK):
        chunk = key_of_edge[start : start + _CHUNK]
        fresh = chunk[np.diff(chunk, prepend=last) > 0]
        last = chunk[-1]
        dst, src = np.divmod(fresh, num_nodes)
        pieces.append(src.astype(index_dtype(num_nodes)))
        if len(dst):
            in_chunk = np.bincount(dst - dst[0])
            counts[dst[0] + 1 :][: len(in_chunk)] += in_chunk
    src = np.concatenate(pieces) if pieces else np.empty(0, index_dtype(num_nodes))
    return np.cumsum(counts), src
