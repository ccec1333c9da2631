"""How the columns of a run were prepared: told when it begins, kept with it, used by inference."""

from pathlib import Path
from typing import Any

from siafu.config import RunConfig, is_asked, settings_of, shown_flag
from siafu.errors import DataError, StoreError
from siafu.files import mapping_of, read_mapping, write_text_atomically
from siafu.graph import Schema, folder_kind, load_store, writing
from siafu.nn.cards import CARDS
from siafu.options import readable
from siafu.partitioning import open_parts
from siafu.partitioning.options import ColumnOptions
from siafu.partitioning.prepared import ColumnChoices
from siafu.record import RunFolder, Say

_MOST_BYTES = 1 << 26
"""Of the schema of a run: a table may have thousands of columns."""


def column_choices(config: RunConfig) -> ColumnChoices:
    """Return how the settings of a run have columns prepared."""
    asked = [name for name in settings_of(ColumnOptions) if is_asked(config, name)]
    return ColumnChoices(
        scale=config.scale,
        changes=None if config.schema is None else _read_changes(config.schema),
        named=str(config.schema),
        all_rows=config.task in ("link", "edge"),
        asked=" ".join(shown_flag(name, getattr(config, name)) for name in asked),
    )


def _read_changes(text: str) -> dict[str, Any]:
    """Return what a file says of columns, or the text itself where that is in braces."""
    fix = "begin with what `siafu inspect STORE --schema` prints"
    with readable(text, "The schema can't be read.", fix):
        if text.lstrip().startswith("{"):
            return mapping_of(text)
        return read_mapping(Path(text), most_bytes=_MOST_BYTES)


def save_schema(folder: RunFolder, parts: Path) -> None:
    """Keep with the run how its columns were prepared, where they have names."""
    schema = schema_of_parts(parts) if folder_kind(parts) == "parts" else None
    if schema is not None:
        with writing(folder.path):
            write_text_atomically(folder.schema, schema.to_yaml())


def schema_of_parts(parts: Path) -> Schema | None:
    """Return how the columns of parts were prepared; None where they have no names."""
    said = open_parts(parts).facts["graph"].get("schema")
    return None if said is None else Schema.from_dict(said)


def learnt_schema(folder: RunFolder) -> Schema:
    """Return how the columns of a run were prepared; an empty schema where they were not."""
    if not folder.schema.exists():
        return Schema()
    try:
        schema = Schema.from_dict(read_mapping(folder.schema, most_bytes=_MOST_BYTES))
        left = [column.name for column in (*schema.nodes, *schema.edges) if not column.learnt]
        _check_all_learnt(left)
    except (OSError, ValueError) as error:
        raise StoreError(
            "The schema of the run can't be read.",
            seen=f"{folder.schema}: {error}",
            fix="put back the file as training wrote it",
        ) from error
    return schema


def _check_all_learnt(left: list[str]) -> None:
    if left:
        raise ValueError(f"nothing is learnt of {left[0]!r}")


def columns_to_find(folder: RunFolder, config: RunConfig) -> Schema:
    """Return how the columns that a run's model reads were prepared: other data must have them."""
    schema = learnt_schema(folder)
    unread: dict[str, Any] = {} if reads_edges(config) else {"edges": ()}
    unread |= {} if reads_weights(config) else {"weighted": False}
    return schema.model_copy(update=unread)


def reads_edges(config: RunConfig) -> bool:
    """Return whether a run reads the features of edges; a model of one's own may."""
    return config.edge_features or config.task == "edge" or ":" in config.model


def reads_weights(config: RunConfig) -> bool:
    """Return whether a run reads the weights of edges; a model of one's own may."""
    card = CARDS.get(config.model)
    return card is None or card.reads_weights or config.sample_weighted


def with_reverse_edges(config: RunConfig, learnt: Schema, data: Any, say: Say) -> RunConfig:
    """Return the settings with reverse edges added to other data as they were in training."""
    if config.undirected or not learnt.undirected:
        return config
    known = getattr(data, "schema", None)
    if isinstance(data, str | Path) and folder_kind(Path(data)) is not None:
        kind = folder_kind(Path(data))
        known = load_store(data, verify=False).schema if kind == "store" else learnt
    if isinstance(known, Schema) and known.undirected:
        return config
    say("Reverse edges are added, as they were to the data of the training.")
    return config.model_copy(update={"undirected": True})


def check_parts_as_learnt(parts: Path, learnt: Schema) -> None:
    """Raise where parts were cut with their columns prepared in another way than the run's."""
    if folder_kind(parts) != "parts":
        return
    found = schema_of_parts(parts) or Schema()
    is_alike = (found.nodes, found.weight_mean) == (learnt.nodes, learnt.weight_mean)
    if not is_alike or (learnt.edges and found.edges != learnt.edges):
        raise DataError(
            "The columns of the parts were prepared in another way than those of the run.",
            seen=f"{parts}, cut by itself",
            fix="give the tables or the store that they were cut from: columns are then prepared "
            "as in training",
        )
