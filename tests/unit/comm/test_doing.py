"""What a rank did last can be read by others."""

from pathlib import Path

from siafu.comm import Doing, World, read_deed


def test_a_wait_is_noted_when_it_begins_and_when_it_has_ended(tmp_path: Path) -> None:
    file = tmp_path / "rank0.doing"
    assert read_deed(file) is None
    world = World(doing=Doing(file), step="epoch 3", hosts=("a", "b"))
    assert read_deed(file) is None, "nothing is noted yet"
    with world.waiting("rows", 1):
        deed = read_deed(file)
        assert deed is not None
        assert deed.told(deed.since + 7) == "waits for 7 s for rank 1 on b in rows, epoch 3"
    deed = read_deed(file)
    assert deed is not None
    told = "works for 0 s, having waited for rank 1 on b in rows, epoch 3"
    assert deed.told(deed.since) == told
    Doing(file).note("é" * 400, waits=True)
    cut = read_deed(file)
    assert cut is not None
    assert cut.what.startswith("é" * 200)
