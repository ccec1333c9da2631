"""Messages for who calls from Python: arguments instead of flags, frames instead of files."""

from typing import Any

import pyarrow as pa
import pytest

import siafu
from siafu.errors import ConfigError, DataError
from siafu.launch.python_words import in_python


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("name it: --label COLUMN", "name it: label='COLUMN'"),
        ("leave it out of --features", "leave it out of features"),
        ("names: --features COLUMN,COLUMN", "names: features=['COLUMN', 'COLUMN']"),
        ("drop such edges: --drop-unknown", "drop such edges: drop_unknown=True"),
        ("--no-drop-unknown", "drop_unknown=False"),
        ("give --epochs 20, or --lr 0.1", "give epochs=20, or lr=0.1"),
        ("leave --strategy out, or --prune", "leave strategy out, or prune=True"),
        ("--task edge with --strategy dorylus.", "task='edge' with strategy='dorylus'."),
        ("(--src COLUMN --dst COLUMN)", "(src='COLUMN' dst='COLUMN')"),
        ("--memory 4GB; --split 0.6,0.2", "memory='4GB'; split='0.6,0.2'"),
        ("run `siafu partition --parts 3`", "run `siafu partition --parts 3`"),
        (
            "siafu ingest A B --id-type text; --label y",
            "siafu ingest A B --id-type text; label='y'",
        ),
        ("go on: siafu train --resume runs/a-1", "go on: siafu.resume('runs/a-1')"),
        ("--deadline if it was only slow", "deadline if it was only slow"),
        ("sent -- as --foreign flags", "sent -- as --foreign flags"),
    ],
)
def test_flags_become_arguments(text: str, told: str) -> None:
    assert in_python(text) == told


def people(**columns: Any) -> pa.Table:
    return pa.table({"id": list(range(20)), "age": [row % 7 for row in range(20)], **columns})


TRIPS = pa.table({"src": list(range(19)), "dst": list(range(1, 20))})


def test_an_error_names_the_argument_and_the_frame() -> None:
    with pytest.raises(ConfigError, match="fix:  name it: label='COLUMN'") as told:
        siafu.fit(nodes=people(), edges=TRIPS)
    assert "--label" not in str(told.value)
    with pytest.raises(DataError, match="seen: the frame given as nodes with columns") as missing:
        siafu.load(nodes=people(), edges=TRIPS, label="kind")
    assert "frames/" not in str(missing.value)
    assert "label='COLUMN'" in missing.value.fix
    assert str(missing.value).endswith(missing.value.fix)


def test_remarks_name_frames_by_what_they_were_given_as(
    capsys: pytest.CaptureFixture[str],
) -> None:
    twice = pa.concat_tables([TRIPS] * 10 + [pa.table({"src": [99], "dst": [1]})])
    siafu.load(nodes=people(), edges=twice, quiet=False)
    told = " ".join(capsys.readouterr().err.split())
    assert "the first id 99 in column 'src', data row 190 (from 0) of the frame given as" in told
    assert "Columns of the nodes (a frame):" in told
    assert ".parquet" not in told
