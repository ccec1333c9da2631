"""Which snapshots are trained on, choose the weights, or are the test: in order of time."""

import math

from siafu.errors import ConfigError

DEFAULT = "0.7,0.1"
SPLITS = ("train", "val", "test")


def split_steps(num_steps: int, text: str | None) -> dict[str, range]:
    """Return the snapshots of train, val and test: fractions (0.7,0.1) or numbers (95,20) of them.

    What is left over is the test.
    """
    shown = text or DEFAULT
    try:
        first, second = (float(part) for part in shown.split(","))
    except ValueError:
        raise _unusable(shown, num_steps) from None
    if not (math.isfinite(first) and math.isfinite(second)):
        raise _unusable(shown, num_steps)
    if 0 < first < 1 and 0 <= second < 1:
        first, second = round(first * num_steps), round(second * num_steps)
    train, val = int(first), int(second)
    if train < 1 or val < 0 or train + val > num_steps or (train, val) != (first, second):
        raise _unusable(shown, num_steps)
    return {
        "train": range(train),
        "val": range(train, train + val),
        "test": range(train + val, num_steps),
    }


def split_next_steps(num_steps: int, text: str | None) -> dict[str, range]:
    """Return the splits of snapshots that are asked about the next one: all a step earlier."""
    splits = split_steps(num_steps, text)
    if len(splits["train"]) < 2:
        raise ConfigError(
            "Training needs two snapshots or more.",
            seen=f"--split {text or DEFAULT} leaves {len(splits['train'])} of {num_steps}",
            fix="give training more of them, or use a shorter --window",
        )
    return {name: range(max(0, steps.start - 1), steps.stop - 1) for name, steps in splits.items()}


def _unusable(text: str, num_steps: int) -> ConfigError:
    return ConfigError(
        "The snapshots can't be split that way.",
        seen=f"--split {text} with {num_steps} snapshots",
        fix="use fractions for train and val as 0.7,0.1, or numbers of snapshots as 95,20",
    )
