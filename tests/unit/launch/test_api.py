"""What Python offers beside `fit`: each argument does what its flag does."""

from pathlib import Path

import numpy as np
import pytest

import siafu
from siafu.errors import SiafuError
from siafu.ingest import EventOptions


def test_parts_are_cut_as_asked(tmp_path: Path) -> None:
    parts = siafu.partition("planted:120", tmp_path / "a", parts=3, method="hash", split="0.5,0.2")
    assert parts.num_parts == 3
    assert parts.facts["method"] == "hash"
    with pytest.raises(SiafuError):
        siafu.partition("planted:120", tmp_path / "a", parts=2)
    again = siafu.partition("planted:120", tmp_path / "a", parts=2, overwrite=True)
    assert again.num_parts == 2
    with pytest.raises(SiafuError, match="memory"):
        siafu.partition("planted:120", tmp_path / "b", memory="1MB")


def test_events_become_the_snapshots_that_were_asked_for(tmp_path: Path) -> None:
    lines = [f"{k % 5},{(k + 1) % 5},{k}" for k in range(40)]
    (tmp_path / "e.csv").write_text("\n".join(["from,dst,time", *lines]))
    named = EventOptions(src="from")
    coarse = siafu.load_dynamic(tmp_path / "e.csv", window="20", options=named)
    fine = siafu.load_dynamic(tmp_path / "e.csv", window="10", options=named)
    assert (coarse.num_snapshots, fine.num_snapshots) == (2, 4)
    longer = siafu.load_dynamic(tmp_path / "e.csv", window="10", edge_life=2, options=named)
    assert longer.edges_per_snapshot().sum() >= fine.edges_per_snapshot().sum()
    moving = siafu.load_dynamic(tmp_path / "e.csv", window="10", stride="5", options=named)
    assert moving.num_snapshots > fine.num_snapshots


def test_predictions_are_of_the_data_that_is_given(tmp_path: Path) -> None:
    run = siafu.fit("planted:120", epochs=2, out=str(tmp_path / "run"))
    own, other = siafu.infer(run), siafu.infer(run, "planted:150")
    assert (own.num_rows, other.num_rows) == (120, 150)
    kept = siafu.infer(tmp_path / "run", out=tmp_path / "out", embeddings=True)
    assert "embedding" in kept.column_names
    assert list((tmp_path / "out").glob("*.parquet"))
    order = np.argsort(own.column("id").to_numpy())
    again = np.argsort(kept.column("id").to_numpy())
    for name in ("prediction", "confidence"):
        np.testing.assert_array_equal(
            own.column(name).to_numpy()[order], kept.column(name).to_numpy()[again]
        )
    with pytest.raises(SiafuError, match="exists"):
        siafu.infer(run, out=tmp_path / "out")
    assert not list(tmp_path.glob(".siafu-infer-*"))
