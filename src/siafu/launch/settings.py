"""Settings as arguments, by name and type: what editors complete and type checkers know.

Written from the options by `python -m tests.docs.test_surface`.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

from torch import nn


class Columns(TypedDict, total=False):
    """What the columns of tables are."""

    label: str | Sequence[str] | None
    """column(s) to predict, comma between."""
    label_as: Literal["classes", "numbers"] | None
    """what whole numbers to predict are (default: few different ones are classes)."""
    node_id: str | None
    """id column of the node table (default: found)."""
    src: str | None
    """column an edge starts at (default: found)."""
    dst: str | None
    """column an edge ends at (default: found)."""
    features: str | Sequence[str] | None
    """feature columns, comma between; -age,-zip: all but these (default: all that look like
    some)."""
    split_column: str | None
    """column with train, val, test."""
    edge_weight: str | None
    """weight column of the edges (default: weight, where it can be)."""
    edge_attr: str | Sequence[str] | None
    """edge feature columns, or all but -a,-b (default: all that look like some); of events over
    time those named."""
    edge_type: str | None
    """type column of the edges."""
    edge_label: str | Sequence[str] | None
    """column(s) of the edges to predict, comma between."""
    id_type: Literal["integer", "text"] | None
    """read ids as these (default: as the columns have them)."""
    drop_unknown: bool | None
    """drop edges with unknown ids and rows without one (default: up to 1 in 100)."""
    scale: Literal["standard", "robust", "none"]
    """how numbers and dates are scaled: by training nodes, or not."""
    schema: str | Path | dict[str, Any] | None
    """YAML file that says otherwise of some columns (see siafu inspect STORE --schema), or what
    would be in it, in braces."""


class Settings(Columns, total=False):
    """All settings of a training."""

    undirected: bool
    """add missing reverse edges."""
    split: str | Sequence[float] | None
    """draw masks: 0.6,0.2 fractions or 20,30 per class (default: the data's); shares of edges with
    --task link (default: 0.8,0.1)."""
    out: str | Path | None
    """run folder (default: runs/NAME-MODEL-NUMBER)."""
    partition: Literal["auto", "metis", "streaming", "contiguous", "hash"]
    """how to cut the graph when it is not yet."""
    model: str | type[nn.Module] | nn.Module | Callable[..., nn.Module]
    """gcn, sage, sage-max, gin, gat, gatv2, transformer, rgcn, typed-gat; over time tm-gcn, cd-gcn,
    wd-gcn, evolvegcn-o, evolvegcn-h, gcrn; or your own: FILE.py:Class."""
    layers: int
    """graph layers."""
    hidden: int | None
    """hidden width (default: the model's)."""
    heads: int
    """attention heads (gat, gatv2, transformer, typed-gat)."""
    dropout: float | None
    """dropout (default: the model's)."""
    input_dropout: float | None
    """dropout of the input features (default: as --dropout)."""
    norm: Literal["none", "batch", "layer"] | None
    """none, batch (exact over ranks) or layer (default: the model's)."""
    residual: bool
    """add a layer's input to its output."""
    jk: Literal["none", "cat", "max"]
    """jumping knowledge."""
    edge_features: bool
    """let attention, or any model over time, use the edges' features."""
    task: Literal["node", "link", "edge", "signal", "classification", "regression"] | None
    """what is learnt: node (classification or regression as the label is), link, edge, over time
    signal too (default: node; over time what the data has, else link)."""
    epochs: int
    """the most epochs to train."""
    lr: float | None
    """learning rate (default: the model's)."""
    weight_decay: float | None
    """L2 penalty (default: the model's)."""
    optimizer: Literal["adam", "adamw", "sgd"]
    """what takes the steps."""
    momentum: float
    """share of the last step that goes on."""
    schedule: Literal["none", "cosine", "linear", "step"]
    """how the learning rate falls, epoch by epoch: cosine or linear to zero, or step (to a tenth
    after half, to a hundredth after three quarters)."""
    warmup: int
    """epochs in which the learning rate rises to its full height."""
    clip_norm: float | None
    """longest gradient of all weights together; longer ones are shortened."""
    seed: int
    """seed of weights, dropout, splits and partition."""
    normalize_features: bool
    """scale each feature row to sum to 1."""
    class_weights: str | Sequence[float] | None
    """balanced, none, or numbers as 0.9,0.1 (default: none; of edges over time balanced)."""
    loss: str | Callable[..., Any] | None
    """of classes cross-entropy (default) or focal, of numbers mse (default), mae or huber; or your
    own: FILE.py:function."""
    trace: bool
    """write trace.json: when each rank worked, waited and sent, for ui.perfetto.dev."""
    checkpoint_every: int
    """epochs between checkpoints; 0: none."""
    checkpoint_minutes: float
    """after so long the state is saved too, at the end of an epoch or, with minibatches, after a
    step; 0: by --checkpoint-every alone."""
    keep_checkpoints: int
    """checkpoints that are kept, the newest."""
    strategy: str
    """how an epoch is cut up: halo, sar, adaqp, columns, batchgnn, dorylus; auto: the exact one
    predicted as fastest."""
    allow: Literal["exact", "rounded", "sampled"]
    """what auto may take: exact strategies alone, rounded rows where they are faster, or sampled
    minibatches too, where nothing else fits."""
    memory: str | None
    """memory per rank while training, as 4GB; sets stages to auto."""
    stages: str | None
    """groups of peers fetched one after another: 1 to the ranks, or auto."""
    recompute: bool | float | None
    """fetch rows again in backward instead of keeping them; in files and Python also from 0 to 1:
    those of that share of the stages."""
    offload: str | None
    """rows kept for backward that wait in the host's memory, as 4GB, with a GPU; by default what
    --memory, or the GPU's own, asks for."""
    input_cache: bool
    """aggregate the constant first-layer input once."""
    prune: bool
    """train on what influences labelled nodes only, layer by layer."""
    by_columns: bool | None
    """each rank works on all nodes and a slice of the columns; for graphs that cut badly."""
    overlap: bool | None
    """work on owned rows while others travel (default: true)."""
    once_per_host: bool | None
    """send a row once to each host, whose ranks share it (default: true)."""
    precision: Literal["bf16", "float32", "float64"]
    """float32, float64, or bf16: rows and products in bfloat16, sums, weights and losses in
    float32; half the bytes between ranks, and less memory."""
    wire: str | None
    """bits per entry between ranks: 32, 16, 8, 4, 2, bf16, fp8, adaptive or random; with --changes
    1, 0."""
    changes: bool | None
    """send what changed of rows since the last epoch, rounded by --wire; both ends keep them."""
    kept_bits: int | None
    """bits per entry of the rows that both ends keep for --changes: 32, or 16 as bfloat16 (default:
    32)."""
    boundary: float | None
    """share of the rows between ranks that travel in an epoch, drawn by lot and scaled, for sums of
    neighbours (default: 1)."""
    wire_bits: float | None
    """mean bits per entry, 2 to 8, for adaptive (default: 4); with --changes from 0.5."""
    wire_period: int | None
    """epochs between assignments of widths, for adaptive, or from one renewal of rows to the next,
    for --wire 0 (default: 50)."""
    smoothing: float | None
    """share of earlier epochs in rows that --staleness 1 reads in halo and sar, 0 to 0.99."""
    metric: str | Sequence[str] | None
    """scores, comma between, the first one counts: accuracy, f1, macro-f1, micro-f1, roc-auc,
    average-precision, recall@K; of numbers rmse, mae, r2 (default: what fits the targets)."""
    threshold: str | None
    """of two classes, the probability from which on the one looked for is told: a number, or f1 for
    what is best on validation (default: where it is the likelier one)."""
    keep: Literal["score", "loss"]
    """keep the weights of the best validation score, or lowest loss."""
    patience: int
    """stop after so many epochs without gain; 0: never."""
    eval_every: int | None
    """epochs between evaluations (default: 1; 10 with --staleness, since a pipeline is emptied for
    it, and where rows are rounded, since evaluation sends them whole)."""
    evaluate: Literal["auto", "exact", "split", "sampled", "train"]
    """what epochs are scored by: all nodes with all neighbours, those of the splits with all of
    theirs, some of them with --fanout, or training nodes as they are trained on; auto: of the first
    three the best that costs a fifth of training at most."""
    inference: Literal["full", "none"]
    """score and predict all nodes with all neighbours at the end, or nothing (nothing is scored
    then unless --evaluate says how)."""
    sink: str | Sequence[str] | None
    """where metrics go too: tensorboard, mlflow, wandb, or several, comma between."""
    fanout: str | Sequence[int] | None
    """in-edges drawn per node at each hop, as 15,10,5; -1: all; without --layers there are as many
    as numbers."""
    batch_size: int
    """training nodes or edges per minibatch."""
    steps_per_epoch: int | None
    """the most steps of an epoch; the next one goes on from there (default: a pass over all
    training nodes or edges)."""
    macrobatch: str | None
    """steps sampled and fetched in one go, or auto (the default)."""
    seed_order: Literal["local", "global"]
    """minibatches of a rank's own nodes, or alike for any ranks."""
    step_minibatches: int | None
    """minibatches per step with seed_order global (default: ranks)."""
    sample_replace: bool
    """an edge may be drawn more than once."""
    sample_weighted: bool
    """draw edges in proportion to their weights."""
    share_draws: int
    """steps in turn whose minibatches draw by the same numbers of source nodes, so that they meet
    fewer of them: 1 within each minibatch alone, 0 none."""
    hot_rows: str | None
    """memory for rows kept near, as 200MB: of other ranks, or of pinned rows on the device."""
    rows_on: Literal["auto", "device", "pinned", "host"]
    """where edges are drawn and features lie for a GPU: on it (of several ranks, all of the graph
    on each), in pinned memory that it reads, or on the host; auto takes the nearest that has
    room."""
    feature_bits: int
    """bits per input feature as minibatches fetch it: 32, or 8, rounded once."""
    intervals: int | None
    """slices of a rank's nodes in a pipeline (default: 8)."""
    staleness: int | None
    """epochs that rows and weights may lag in a pipeline; with halo and sar 1: rows and gradients
    of others are those of the epoch before (default: 0)."""
    gather: Literal["wait", "latest"] | None
    """in a pipeline, wait for rows as new as --staleness says (default), or read what is there, one
    epoch older at most."""
    exact_from: float | None
    """validation score from which nothing lags any more; of errors (rmse, mae) down to which."""
    ranks: int
    """processes, one per part."""
    device: Literal["auto", "cpu", "cuda"]
    """auto, cpu or cuda."""
    backend: Literal["auto", "gloo", "nccl"]
    """what carries rows between ranks: nccl where each has a GPU of its own, gloo elsewhere; gloo
    takes those of GPUs through the host."""
    threads: int
    """threads per rank; 0 shares the cores."""
    deadline: float
    """seconds any wait between ranks may last."""
    max_restarts: int
    """times a training goes on from its newest checkpoint when a rank is lost."""
    min_ranks: int | None
    """go on without ranks that were lost, as long as so many are left (default: start as many
    again); with --max-restarts."""
    launcher: Literal["local", "ray"]
    """start ranks on this machine, or on the nodes of a Ray cluster."""
    ray_address: str
    """the Ray cluster: auto, HOST:PORT, or local for one started here."""
    pool: Literal["none", "process", "ray", "aws-lambda", "simulated"] | None
    """who does a pipeline's tensor work (default: process)."""
    pool_workers: str | None
    """workers per rank in the pool, or auto (the default)."""
    pool_bits: int | None
    """bits per entry on its way to and from the pool: 32, 16, 8, 4."""
    cloud: str | None
    """the simulated pool's delays and failures: aws-lambda (default), dorylus (the paper's), a
    latency as 20ms, or a YAML file."""
    lambda_function: str | None
    """name of the function in AWS Lambda (packaging/lambda)."""
    lambda_endpoint: str | None
    """URL of a Lambda service other than AWS's own."""
    pool_address: str | None
    """where functions reach ranks: tcp://auto:7000 (each machine's own address), an interface as
    tcp://eth0:7000, or an address of the one machine that all ranks are on; rank r listens at the
    port + r (default: loopback alone)."""
    pool_encryption: bool | None
    """encrypt what travels between ranks and functions (default); without, the run's key and all
    tensors travel in clear, in a private network alone."""
    prices: str | None
    """a price file on top of siafu's own (TOML)."""
    instance: str | None
    """the instance type a rank is billed as (default: c5.xlarge)."""
    max_dollars: float | None
    """end training, saved, before the next epoch would bring the run's bill above so many
    dollars."""
    max_calls: int | None
    """end training, saved, before the next epoch would bring the calls of the pool above so
    many."""
    aggregate: Literal["in", "out"] | None
    """over time a node sums over those whose edges come in, or those its own go out to (default:
    out for tm-gcn, else in)."""
    bandwidth: int
    """snapshots that tm-gcn averages over."""
    head: Literal["linear", "mlp"] | None
    """over time, pairs are judged by a linear map of both ends' embeddings, or with a hidden layer
    (default: linear for the edge classes of tm-gcn, else mlp)."""
    node_features: str | None
    """over time, instead of the data's own: log-degree, degree-onehot, random:32 (drawn per node)
    or learned:32 (default: the data's; log-degree where it has none)."""
    history: int | None
    """snapshots looked back on by recurrences (default: all), by histories of pairs and by
    --negatives history:K (default: 10)."""
    pair_history: bool
    """over time, links are judged also by when and how often a pair met before."""
    lags: int
    """past values of a signal that are features."""
    time_block: int
    """snapshots worked on at once, to save memory; 0: all of them."""
    step_every: Literal["epoch", "block"]
    """over time, when weights are changed: once per epoch, or after each --time-block, whose
    gradients then end at its start."""
    node_parts: int
    """groups of nodes that share every snapshot of a dynamic graph out among them, each on ranks /
    groups ranks; for snapshots larger than a rank."""
    time_exchange: Literal["auto", "all-to-all", "banded", "wavefront"]
    """how ranks reach each other's snapshots."""
    window: str | None
    """events per snapshot: 14d, 12h, a number, 500e events, or each."""
    columns: str | None
    """of events: the columns that are src, dst, time, weight or label, where they have other names:
    src=from,time=when."""
    time_unit: Literal["s", "ms", "us", "ns"]
    """what times that are numbers count, for windows as 14d."""
    partial_window: Literal["keep", "drop"]
    """whether a last window that the data only begins to fill counts."""
    edge_life: int
    """snapshots that an edge stays alive for."""
    negatives: str | None
    """per edge, uniform:K drawn ones (default: uniform:1), or in-batch; over time history:K with
    its source and nodes of the last snapshots (default: history:20)."""
    eval_negatives: str
    """drawn ones that an edge is ranked among; over time also all: of nodes met, and of all."""
    exclude_targets: bool
    """no messages over the edges of a minibatch while it is trained on."""
