"""Figures of bf16 beside float32, as lines of docs/benchmarks.md."""

from benchmarks.beside import Row, faster, ms, rows_of


def precision_lines() -> list[str]:
    """Return what bf16 gains in seconds and memory, and what becomes of scores."""
    found: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows_of("precision-h200"):
        if "failed" not in row:
            found.setdefault((row["part"], row["name"]), {})[row["precision"]] = row
    both = {key: kinds for key, kinds in found.items() if len(kinds) == 2}
    lines = [_epoch_line(*key, kinds, both) for key, kinds in both.items() if key[0] in _WORDS]
    scores = {name: kinds for (part, name), kinds in both.items() if part == "accuracy"}
    if scores:
        told = "; ".join(
            f"{name} {kinds['bf16']['mean']:.1f} ± {kinds['bf16']['std']:.1f} % "
            f"({kinds['float32']['mean']:.1f} ± {kinds['float32']['std']:.1f} %)"
            for name, kinds in scores.items()
        )
        seeds = len(next(iter(scores.values()))["bf16"]["scores"])
        lines.append(
            f"| test score in bf16 (float32), GCN, {seeds} seeds, H200 | {told} "
            "| `benchmarks.precision --parts accuracy` |"
        )
    return lines


_WORDS = {"whole": "epoch over the whole graph", "sampled": "sampled epoch, fan-out 15,10,5"}


def _epoch_line(
    part: str, name: str, kinds: dict[str, Row], both: dict[tuple[str, str], dict[str, Row]]
) -> str:
    ours, wide = kinds["bf16"], kinds["float32"]
    spent, before = 1e3 * ours["epoch_seconds"], 1e3 * wide["epoch_seconds"]
    told = f"{ms(spent)}, {faster(spent, before, 'float32')}; {ours['device_gb']:.1f} GB of the "
    told += f"device instead of {wide['device_gb']:.1f} GB"
    if part == "whole" and ("pyg", name) in both:
        theirs = both["pyg", name]["bf16"]
        told += f"; {faster(spent, 1e3 * theirs['epoch_seconds'], 'PyG under autocast')}, which "
        told += f"takes {theirs['device_gb']:.1f} GB"
    return (
        f"| {_WORDS[part]} in bf16, 3 x 256 {name.upper()}, 1.2 M nodes, 40 M edges, H200 "
        f"| {told} | `benchmarks.precision --parts {part}` |"
    )
