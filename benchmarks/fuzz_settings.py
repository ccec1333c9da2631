"""Odd settings of a run, in a file or as flags."""

import json
from pathlib import Path
from typing import Any

from benchmarks.fuzz_inputs import Draw, Maker, damage
from siafu.config import RunConfig

_ODD_VALUES: list[Any] = [
    *(-1, 0, 1, 2, 10**9, 10**26, 0.5, -0.0, 1e300, float("nan"), float("inf"), True, None),
    *(
        "",
        " ",
        "x",
        "\0",
        "a\0b",
        "auto",
        "1,2,3",
        "-1,-1",
        "1e9",
        "../..",
        "/",
        "src=,=",
        "é",
    ),
    *([], {}, [1], {"a": 1}, "9" * 400, "ALL", "none", "32", "4GB", "4", "1:2:3", "\n"),
]
_SLOW = frozenset({"launcher", "ray_address", "pool", "lambda_endpoint", "ranks", "epochs"})
"""Settings that start other processes or machines, or train for as long as they are told."""


def config(draw: Draw, folder: Path) -> list[str]:
    """Return a command with odd settings, in a file or as flags."""
    names = [name for name in RunConfig.model_fields if name not in _SLOW]
    settings: dict[str, Any] = {"data": "planted:60", "epochs": 1}
    if draw.random() < 0.2:
        settings |= {"data": "drifting:60", "model": "tm-gcn"}
    for _ in range(draw.choice([1, 1, 2])):
        settings[draw.choice(names)] = draw.choice(_ODD_VALUES)
    if draw.random() < 0.5:
        flags = [
            f"--{name.replace('_', '-')}={value}"
            for name, value in settings.items()
            if name != "data" and not isinstance(value, bool)
        ]
        data = settings["data"]
        return ["train", str(data) if data else "planted:60", "--quiet", *flags]
    if draw.random() < 0.7:
        (folder / "run.yaml").write_text(json.dumps(settings), errors="replace")
    else:
        text = draw.choice(["{" * 3000, "[" * 3000, "a: &a [*a]", "- 1", "", "data: !!x/y:os"])
        (folder / "run.yaml").write_text(text)
    if draw.random() < 0.15:
        damage(draw, folder / "run.yaml")
    return ["train", "run.yaml", "--quiet"]


MAKERS: dict[str, Maker] = {"config": config}
