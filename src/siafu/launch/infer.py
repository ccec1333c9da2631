"""Predictions of a finished run, for its own graph or another."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import pyarrow as pa
import pyarrow.parquet as pq

from siafu.config import RunConfig, make_config, read_run_config
from siafu.errors import ConfigError, StoreError
from siafu.files import publish
from siafu.graph import Schema, at_hand, folder_kind, origin_of, writing
from siafu.ingest import given_data
from siafu.launch.apart import settings_of_first, shared_job
from siafu.launch.columns import check_node_table, with_columns_of_inference
from siafu.launch.cut import Say
from siafu.launch.dynamic import is_dynamic_run
from siafu.launch.host_room import check_budget_of_process
from siafu.launch.learnt import columns_to_find, learnt_schema, with_reverse_edges
from siafu.launch.notebook import sayer
from siafu.launch.own_code import model_to_run
from siafu.launch.pairs import save_pairs
from siafu.launch.prepare import prepare_parts, preparing, wait_for_preparation
from siafu.launch.rank import Job, work
from siafu.launch.rank_checks import check_alike
from siafu.launch.ranks import begin_loading, carry_out, joined, under_torchrun
from siafu.launch.run_state import begun_run, existing_run, parts_of
from siafu.launch.settings import Columns
from siafu.launch.signature import with_settings
from siafu.partitioning import open_parts
from siafu.record import PhaseProgress, RunFolder, shortened

if TYPE_CHECKING:
    from siafu.launch.run import Run

_Asked = AbstractContextManager[tuple[RunFolder, RunConfig, Job]]


def write_inference(  # noqa: PLR0913 - one argument per flag
    path: Path,
    target: Path,
    *,
    data: Any = None,
    pairs: Any = None,
    embeddings: bool = False,
    overwrite: bool = False,
    model: str | None = None,
    memory: str | None = None,
    columns: dict[str, Any] | None = None,
    say: Say,
    quiet: bool = False,
) -> Path | None:
    """Write predictions of a finished run for its own graph or another; return their folder.

    Under torchrun its ranks do that, and rank 0, which alone has the folder, returns it. `model`
    names the file of a model of the user's own, where that is not trusted yet; `memory` is the
    budget of a rank, where it is not training's; `columns` what the columns of other data are,
    where it has others than the run's. `pairs` is a table of nodes src and dst: of a run about
    edges their scores are written alone. The folder appears when all ranks are done, and not at
    all when one fails.
    """
    asked = partial(
        _asked,
        path,
        target,
        data=at_hand(data),
        pairs=pairs,
        embeddings=embeddings,
        overwrite=overwrite,
        model=model,
        memory=memory,
        columns=columns or {},
        say=say,
        quiet=quiet,
    )
    if under_torchrun():
        return target if _infer_as_rank(path, asked, memory) else None
    with asked(ranks=None) as (folder, config, job):
        begin_loading(config)
        carry_out(folder, config, job, say)
    return target


def _infer_as_rank(path: Path, asked: Callable[..., _Asked], memory: str | None) -> bool:
    """Infer as one of torchrun's ranks, and return whether this is rank 0, which prepares."""
    settings = settings_of_first(lambda: read_run_config(begun_run(path).config))
    with joined(_with_memory(make_config(**settings), memory)) as world:
        check_alike(world)
        if world.rank != 0:
            wait_for_preparation(world)
            with shared_job("", None, world) as (_, folder, job):
                work(folder, job, world)
            return False
        with ExitStack() as stack:
            with preparing(world):
                folder, _, job = stack.enter_context(asked(ranks=world.size))
            with shared_job(str(folder.path.absolute()), job, world) as (_, folder, own):
                work(folder, own, world)
        return True


@contextmanager
def _asked(  # noqa: PLR0913 - one argument per flag
    path: Path,
    target: Path,
    *,
    ranks: int | None,
    data: Any,
    pairs: Any,
    embeddings: bool,
    overwrite: bool,
    model: str | None,
    memory: str | None,
    columns: dict[str, Any],
    say: Say,
    quiet: bool,
) -> Iterator[tuple[RunFolder, RunConfig, Job]]:
    """Yield the run, its settings and the job that infers; what it wrote is put at `target` then.

    `ranks` are those that are there already, if any are.
    """
    folder = _finished_run(path)
    _check_free(target, overwrite=overwrite)
    settings, cut = read_run_config(folder.config), Path(parts_of(folder))
    config = _with_memory(make_config(**settings), memory, cut)
    named = model_to_run(config.model, model, f"siafu infer {path}", path)
    config = config.model_copy(update={"model": named})
    config = with_columns_of_inference(config, data, columns)
    _tell_embeddings(config, say, are_asked=embeddings)
    config = _on_ranks(folder, config, ranks, data)
    parent = target.absolute().parent
    with writing(target):
        parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".siafu-", dir=parent) as scratch:
        parts = cut
        if data is not None:
            if config.task is None and is_dynamic_run(data, config):
                config = config.model_copy(update={"task": folder.read_result().get("task")})
            own, progress = Path(scratch) / "data.parts", PhaseProgress(quiet=quiet)
            learnt = columns_to_find(folder, config)
            _check_tables(data, config, learnt)
            config = with_reverse_edges(config, learnt, data, say)
            parts = prepare_parts(data, config, own, say=say, progress=progress, learnt=learnt)
            _tell_unnamed(cut, parts, say)
        made, asked = Path(scratch) / "predictions", ""
        if pairs is not None:
            how: dict[str, Any] = {"learnt": learnt_schema(folder), "embeddings": embeddings}
            asked = save_pairs(pairs, config, parts, Path(scratch), say=say, **how)
        job = Job(
            verb="infer",
            quiet=quiet,
            parts=origin_of(parts) or str(parts.absolute()),
            embeddings=embeddings,
            target=str(made),
            model=named,
            memory="" if memory is None else str(memory),
            pairs=asked,
        )
        yield folder, config, job
        with writing(target):
            publish(made, target)


def _with_memory(config: RunConfig, memory: str | None, parts: Path | None = None) -> RunConfig:
    """Return the settings of a run with another budget for inference, where one is given.

    `parts` are of the run, where this process sees them.
    """
    if memory is None:
        return config
    if parts is not None and folder_kind(parts) == "dynamic":
        raise ConfigError(
            "Inference over time knows no budget.",
            seen=f"--memory {memory} with a run on a graph that changes over time",
            fix="leave --memory out",
        )
    if parts is not None and config.chosen.unit != "macrobatch":
        raise ConfigError(
            "Only runs on minibatches infer within a budget.",
            seen=f"--memory {memory}; the run was trained on the whole graph at once, whose ranks "
            "hold rows of every node",
            fix="leave --memory out, or train with --strategy batchgnn",
        )
    limited = make_config(**{**config.model_dump(), "memory": str(memory)})
    _ = limited.memory_bytes  # refused where it can't be read
    check_budget_of_process(limited)
    return limited


def _tell_embeddings(config: RunConfig, say: Say, *, are_asked: bool) -> None:
    if are_asked and ":" in config.model:
        say("Embeddings of a model of your own are the rows that its forward returns: its logits.")


def _check_tables(data: Any, config: RunConfig, learnt: Schema) -> None:
    if not is_dynamic_run(data, config):
        check_node_table(data, config, learnt)


def _finished_run(path: Path) -> RunFolder:
    """Return the run to infer with, refusing one that is not finished."""
    folder = existing_run(path)
    if not folder.weights.exists():
        raise StoreError("The run is not finished.", seen=str(path), fix="resume it first")
    return folder


def _on_ranks(folder: RunFolder, config: RunConfig, ranks: int | None, data: Any) -> RunConfig:
    """Return the settings with the ranks that are there, which can read the data as it is cut."""
    if ranks is None:
        return config
    if data is None and ranks != config.ranks and folder_kind(Path(parts_of(folder))) == "parts":
        raise ConfigError(
            "The run's graph is cut for another number of ranks.",
            seen=f"{ranks} ranks, {config.ranks} parts",
            fix=f"start {config.ranks} ranks, or name the graph with --data to have it cut for "
            f"{ranks}",
        )
    return config.model_copy(update={"ranks": ranks})


@with_settings(Columns)
def infer(  # noqa: PLR0913 - one argument per flag
    run: "Run | Path | str",
    data: Any = None,
    *,
    nodes: Any = None,
    edges: Any = None,
    x: Any = None,
    out: Path | str | None = None,
    pairs: Any = None,
    embeddings: bool = False,
    overwrite: bool = False,
    model: str | None = None,
    memory: str | None = None,
    quiet: bool = False,
    **columns: Unpack[Columns],
) -> pa.Table:
    """Return predictions of a finished run, for its own graph or for `data`, by the user's ids.

    Of a run about edges, `pairs` are nodes src and dst, a file or a frame, to be scored instead.
    `out` keeps them as Parquet files too; `embeddings` adds the rows before the last layer. A model
    of your own that is not trusted yet is named again by `model`. `memory` is what a rank may take,
    where it is not what training was given (runs on minibatches). `data`, `nodes`, `edges` and `x`
    are what `siafu.fit` takes; `columns` those of tables, where they have other names than in the
    run's. Columns that differ, categories never seen and the like are told on stderr; `quiet=True`
    leaves all but warnings out. Under torchrun rank 0 returns them, others an empty table.

    >>> table = siafu.infer(run, "new.npz")
    >>> table.column("prediction")
    """
    path, own = path_of(run), dict[str, Any](columns)
    if not (data is None and nodes is None and edges is None):
        given = given_data(data, nodes=nodes, edges=edges, x=x)
        data, own = given.source, {**columns, **given.columns}
    with _beside(path) as scratch:
        target = Path(scratch) / "predictions" if out is None else Path(out)
        written = write_inference(
            path,
            target,
            data=data,
            pairs=pairs,
            embeddings=embeddings,
            overwrite=overwrite,
            model=model,
            memory=memory,
            columns=own,
            say=sayer(quiet=quiet),
            quiet=quiet,
        )
        return pa.table({}) if written is None else pq.read_table(written)


def _beside(path: Path) -> AbstractContextManager[str]:
    """Return a folder beside the run, which its ranks reach; of a rank that does not see the run,
    one that it never writes to."""
    parent = path.absolute().parent
    return tempfile.TemporaryDirectory(
        prefix=".siafu-infer-", dir=parent if parent.is_dir() else None
    )


def path_of(run: "Run | Path | str") -> Path:
    """Return the folder of a run, however it was named."""
    return Path(run) if isinstance(run, str | Path) else run.path


def _tell_unnamed(trained_on: Path, given: Path, say: Say) -> None:
    """Say which columns are taken for which where the data does not name its own."""
    if folder_kind(trained_on) != "parts" or folder_kind(given) != "parts":
        return
    known, seen = (
        open_parts(path).facts["graph"].get("feature_names") for path in (trained_on, given)
    )
    if known and not seen:
        say(f"The features have no names; they are taken in the model's order: {shortened(known)}.")


def _check_free(target: Path, *, overwrite: bool) -> None:
    """Raise unless predictions may be put at `target`: never in place of anything else."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    if overwrite and target.is_dir() and all(p.suffix == ".parquet" for p in target.iterdir()):
        return
    if overwrite:
        raise StoreError(
            "The target holds more than predictions.", seen=str(target), fix="name another --out"
        )
    raise StoreError(
        "The target exists already.",
        seen=str(target),
        fix="name another folder with --out, or pass --overwrite",
    )
