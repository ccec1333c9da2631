"""Tables that were read before are not read again to be cut."""

from pathlib import Path

import numpy as np

from siafu.ingest import load
from siafu.launch.cut import SourceReading, cut_source
from siafu.partitioning import Cut, open_parts


def test_partition_uses_the_store_in_the_cache(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("SIAFU_CACHE", str(tmp_path / "cache"))
    folder, generator = tmp_path / "data", np.random.default_rng(0)
    folder.mkdir()
    rows = [f"{k},{k % 3},{x:.4f}" for k, x in enumerate(generator.random(60))]
    (folder / "nodes.csv").write_text("\n".join(["id,label,a", *rows]) + "\n")
    pairs = generator.integers(0, 60, (200, 2)).tolist()
    (folder / "edges.csv").write_text("\n".join(["src,dst", *(f"{s},{d}" for s, d in pairs)]))
    cut, reading = (
        Cut(num_parts=2, method="hash", seed=0),
        SourceReading(undirected=True, split="0.6,0.2"),
    )
    cut_source(folder, tmp_path / "first.parts", cut, reading)
    load(folder, undirected=True)
    monkeypatch.setattr("siafu.launch.cut.ingest_to_store", lambda *args, **given: 1 / 0)
    cut_source(folder, tmp_path / "second.parts", cut, reading)
    first, second = (open_parts(tmp_path / f"{name}.parts") for name in ("first", "second"))
    for part in range(2):
        one, other = first.part(part), second.part(part)
        assert one.entries == other.entries, "checksums of all arrays"
        assert one.facts == other.facts
