"""Figures of sampled minibatches and of graphs on disk, as lines of docs/benchmarks.md."""

from benchmarks.beside import SMALL_REACH, Row, faster, ms, rows_of, times
from siafu.record import counted


def sampling_lines() -> list[str]:
    """Return how fast minibatches are drawn, and what fetching several at once saves."""
    lines = [
        f"| one minibatch drawn, fan-out 15,10,5, batch 1000, {name}, one thread "
        f"| {ms(row['ours cpu_ms'])} of processor time, "
        f"{faster(row['ours cpu_ms'], row['pyg cpu_ms'], 'PyG with torch-sparse')}, "
        f"{faster(row['ours cpu_ms'], row['dgl cpu_ms'], 'DGL')}, which draws more edges: "
        f"{times(row['ours / dgl, edges_per_cpu_s'])} its edges per second "
        f"| `benchmarks.sampling {'--quick ' if name == 'arxiv-like' else ''}"
        "--pyg-python P --dgl-python P` |"
        for name, row in {row["graph"]: row for row in rows_of("sampling")}.items()
    ]
    for result in rows_of("macrobatch"):
        rows = [row for row in result["rows"] if row["contestant"] in ("k=32", "k=32, aggregated")]
        # Hosts that share a core tell more of that than of their network.
        own = result["cores"] // result["threads"]
        rows = [row for row in rows if 1 < row["hosts"] <= own and "epoch_seconds" in row]
        lines += [_macrobatch_line(row, result) for row in rows]
    return lines


def distdgl_lines() -> list[str]:
    """Return what a sampled epoch over links takes beside DistDGL."""
    lines = []
    for result in rows_of("distdgl"):
        rows = result["rows"]
        peers = [1e3 * row["seconds"] for name, row in rows.items() if name.startswith("DistDGL")]
        most = next(name for name in ("k=32", "k=4") if name in rows)
        ours, turn = (1e3 * rows[name]["seconds"] for name in (most, "k=1, in turn"))
        # A macrobatch ends with its epoch.
        told = f"k={result['steps']}, the whole epoch" if most == "k=32" else most
        slower = result.get("slower", 1)
        played = f" (played {slower} x slower)" if slower > 1 else ""
        lines.append(
            f"| sampled epoch, 3 x 256 SAGE, fan-out 15,10,5, {result['steps']} minibatches per "
            f"host, {result['nodes'] / 1e6:.0f} M nodes, {result['hosts']} hosts of "
            f"{result['threads']} core at {result['mbit'] / 1e3:.0f} Gbit/s{played}, {told} "
            f"| {ms(ours)}, {faster(ours, min(peers), 'DistDGL')}, "
            f"{faster(ours, turn, 'a minibatch at a time')} "
            f"| `benchmarks.distdgl --dgl-python P --hosts {result['hosts']} --steps "
            f"{result['steps']}` |"
        )
    return lines


def sampled_gpu_lines() -> list[str]:
    """Return what a sampled epoch takes on one GPU, by where rows lie."""
    lines = []
    rows = rows_of("sampled_gpu-h200")
    for model in dict.fromkeys(row["model"] for row in rows):
        found = {row["contestant"]: row for row in rows if row["model"] == model}
        timed = {name: row for name, row in found.items() if "epoch_seconds" in row}
        plain, first = timed.get("plain torch"), timed["siafu device"]
        ours = 1e3 * first["epoch_seconds"]
        told = f"{ms(ours)}, {first['minibatch_ms']:.1f} ms per minibatch, "
        told += f"{first['device_gb']:.1f} GB of the device"
        if plain is not None:
            theirs = 1e3 * plain["epoch_seconds"]
            told += f"; {faster(ours, theirs, 'a loop of plain torch operations there')}"
        if "siafu pinned" in timed:
            pinned = 1e3 * timed["siafu pinned"]["epoch_seconds"]
            told += f"; with features in pinned memory {ms(pinned)}"
        more = " --ranks 2" if "siafu device x 2" in timed else ""
        if more:
            both, apart = (timed[f"siafu {place} x 2"] for place in ("device", "host"))
            ours, theirs = (1e3 * row["epoch_seconds"] for row in (both, apart))
            told += f"; 2 ranks that share it, the whole graph on each, {ms(ours)}, "
            told += f"{times(theirs / ours)} faster than drawing on their hosts ({ms(theirs)})"
        size = f"{first['nodes'] / 1e6:.1f} M nodes, {first['edges'] / 1e6:.0f} M edges"
        lines.append(
            f"| sampled epoch, 3 x 256 {model.upper()}, fan-out 15,10,5, "
            f"{first['seeds'] / 1e3:.0f}k seeds, {size}, H200 | {told}; losses "
            f"{found['losses']['apart']:.0e} from the CPU's "
            f"| `benchmarks.sampled_gpu --models {model}{more}` |"
        )
    return lines


def ingest_lines() -> list[str]:
    """Return how fast tables become a store, and a store parts, on each machine's newest run."""
    lines = []
    newest = {(run.get("cpu"), run.get("cores")): run for run in rows_of("ingest") if "rows" in run}
    for (cpu, cores), run in newest.items():
        what = f"{run['edges'] / 1e6:.0f} M edges, {run['nodes'] / 1e6:.0f} M nodes"
        for row in run["rows"]:
            layout, asked = counted(row["threads"], "thread"), f"--threads {row['threads']}"
            if row["ranks"] > 1:
                layout, asked = f"{row['ranks']} ranks of {layout}", f"--ranks {row['ranks']}"
            told = [
                f"{name} {row[f'{phase}_edges_per_second'] / 1e6:.1f} M edges/s, "
                f"{row[f'{phase}_peak_gib']:.2f} GiB resident"
                for phase, name in (
                    ("build", "tables to a store"),
                    ("partition", "a store to 4 parts"),
                )
            ]
            lines.append(
                f"| ingest and cut, {what}, {layout} of {cores} cores ({cpu}) | {'; '.join(told)} "
                f"| `benchmarks.ingest --edges {run['edges']} {asked}` |"
            )
    return lines


def cut_lines() -> list[str]:
    """Return what share of the edges each method cuts, and how long it takes."""
    lines = []
    for result in rows_of("cut"):
        rows = {row["method"]: row for row in result["rows"]}
        told = [
            f"{name} {rows[name]['cut_fraction']:.3f} of the edges, {rows[name]['seconds']:.1f} s, "
            f"{rows[name]['memory_mib']} MiB"
            for name in ("streaming", "metis", "hash")
        ]
        lines.append(
            f"| cut into {result['parts']} parts, {result['graph']}, {result['edges'] / 1e6:.1f} M "
            f"edges | {'; '.join(told)} | `benchmarks.cut --graphs {result['graph']}` |"
        )
    return lines


def cold_lines() -> list[str]:
    """Return how fast rows of files are read that memory can't hold, beside the disk itself."""
    return [
        f"| cold rows of 512 bytes, a file of {row['file_gb']:.0f} GB under an enforced limit of "
        f"{row['limit_mb']} MB | {row['ours_rows_per_second'] / 1e3:.0f} k rows/s, a plain loop "
        f"over a memory map {row['map_rows_per_second'] / 1e3:.1f} k; the disk by 64 threads, a "
        f"page each, {row['disk_rows_per_second'] / 1e3:.0f} k | `benchmarks.cold_rows` |"
        for row in rows_of("cold_rows")
    ] + [
        f"| minibatches of SAGE, fan-out 10,5, cold, features of {row['features_gb']:.0f} GB under "
        f"an enforced limit of {row['limit_mb'] / 1e3:g} GB | "
        f"{row['minibatches_per_second']:.2f} per second, all counted; reading their rows alone: a "
        f"plain loop over a memory map {row['map_minibatches_per_second']:.2f}, the disk by 64 "
        f"threads of Python, a row each, {row['disk_minibatches_per_second']:.2f} | "
        "`benchmarks.cold_minibatches` |"
        for row in rows_of("cold_minibatches")
    ]


def _macrobatch_line(row: Row, result: Row) -> str:
    hosts = f"{row['hosts']} host{'s' if row['hosts'] > 1 else ''}"
    command = (
        f"benchmarks.macrobatch --hosts {row['hosts']} --graphs {row['graph']} "
        f"--nodes {result['nodes']} --steps {result['steps']}"
    )
    if result["threads"] > 1:
        hosts += f" of {result['threads']} cores"
        command += f" --threads {result['threads']}"
    if "gpu" in result:
        hosts += f" sharing one {result['gpu']}"
        command += " --device cuda"
    told = f"{times(row['times_in_turn'])} faster than minibatches fetched in turn"
    reach = result.get("reach") or _reach(row["graph"], result["nodes"])
    if reach.get("1", 1.0) <= SMALL_REACH:
        told += f"; {row['feature_share']} of k=1's feature bytes"
    told += f" (a minibatch reaches {reach['1']:.0%} of this graph)" if reach else ""
    return (
        f"| sampled epoch, 3 x 256 SAGE, {row['graph']}, {hosts} at {row['mbit']:g} Mbit/s, "
        f"{row['contestant']} | {row['epoch_seconds']:.1f} s, {told} | `{command}` |"
    )


def _reach(graph: str, nodes: int) -> Row:
    """Return how much minibatches reach of a graph whose results do not tell it themselves."""
    for row in rows_of("reach"):
        if (row["graph"], row["nodes"]) == (graph, nodes):
            return dict(row["reach"])
    return {}


def reach_lines() -> list[str]:
    """Return what macrobatches save in far rows on graphs that a minibatch does not cover."""
    lines: list[str] = []
    plain: dict[str, Row] = {}
    for row in rows_of("reach"):
        if "ranks" in row:
            continue
        about = f"{row['graph']}, {row['nodes'] / 1e6:g} M nodes of degree {row['degree']}"
        if row.get("share_draws"):
            alone = plain[about]
            lines.append(
                f"| draws shared by {counted(row['share_draws'], 'step')}, {about} | a minibatch "
                f"meets {row['batch_nodes'] / alone['batch_nodes']:.2f} of the nodes that it meets "
                f"without ({alone['batch_nodes']:,}), 32 of them "
                f"{row['far_rows'] / alone['far_rows']:.2f} of the rows of others "
                f"({alone['far_rows']:,}) | `benchmarks.reach --share 0,1,8,32` |"
            )
            continue
        plain[about] = row
        if row["reach"]["1"] <= SMALL_REACH:
            shares = ", ".join(f"k={k} {row['far_share'][k]:.2f}" for k in ("2", "8", "32"))
            lines.append(
                f"| far rows of k minibatches together, over one by one, {about} | {shares} (a "
                f"minibatch reaches {row['reach']['1']:.0%} of this graph, 32 "
                f"{row['reach']['32']:.0%}) | `benchmarks.reach` |"
            )
    return lines + cooperation_lines()


def cooperation_lines() -> list[str]:
    """Return how fast a step would be if the minibatches of its ranks were one."""
    steps: dict[tuple[str, str, int, int], list[Row]] = {}
    for row in rows_of("reach"):
        if row.get("ranks") in (4, 8):
            fanouts = ",".join(map(str, row["fanouts"]))
            key = fanouts, row["graph"], row["nodes"], row["ranks"]
            steps.setdefault(key, []).append(row)
    lines = []
    for fanouts in dict.fromkeys(key[0] for key in steps):
        ratios = [cooperation_ratio(rows) for key, rows in steps.items() if key[0] == fanouts]
        graphs = {key[1]: None for key in steps if key[0] == fanouts}
        lines.append(
            f"| one minibatch of all ranks for one of each (not built), fan-out {fanouts}, 4 and 8 "
            f"ranks, 1 Gbit/s, {', '.join(graphs)}, reckoned from counts | {_beside(min(ratios))} "
            f"to {_beside(max(ratios))} than the best of 8 steps together and shared draws "
            f"| `benchmarks.reach --ranks 4,8 --steps 8 --share 0,1,8 --fanouts {fanouts} "
            f"--graphs {','.join(graphs)}` |"
        )
    return lines


def cooperation_ratio(rows: list[Row], link: str = "1 Gbit/s", how: str = "s") -> float:
    """Return the seconds of the best independent step over those of the best cooperative one."""
    alone, together = (
        min(
            told[link][how]
            for row in rows
            for name, told in row[side].items()
            if name.startswith("k=")
        )
        for side in ("independent", "cooperative")
    )
    return alone / together


def _beside(ratio: float) -> str:
    return f"{ratio:.2f} x faster" if ratio >= 1 else f"{1 / ratio:.2f} x slower"


def sampled_accuracy_lines() -> list[str]:
    """Return how sampled training scores beside that on the whole graph."""
    lines = []
    for result in rows_of("sampled_accuracy"):
        names = list(dict.fromkeys(row["set"] for row in result["rows"]))
        for name in names:
            found = {row["contestant"]: row for row in result["rows"] if row["set"] == name}
            if len(found) < 3:
                continue
            told = ", ".join(f"{what} {row['test']:.2f}" for what, row in found.items())
            command = f"benchmarks.sampled_accuracy --sets {name} --ranks {result['ranks']}"
            command += " --device cuda" if "gpu" in result else ""
            lines.append(
                f"| SAGE test accuracy, {name}, {result['seeds']} seeds | {told} | `{command}` |"
            )
    return lines


_FEATURES = 32
"""Columns of `benchmarks.billion`, unless others are asked for."""


def billion_lines() -> list[str]:
    """Return what a graph of a billion edges takes."""
    lines = []
    for row in rows_of("billion"):
        phases = row["phases"]
        told = ", ".join(
            f"{name} {phases[name]['seconds']:.0f} s in {phases[name]['peak_gib']:.1f} GiB"
            for name in ("make", "cut", "train")
        )
        is_whole = "predicted_nodes" in row["last_epoch"]
        also = "scores, predictions of all" if is_whole else "no scores"
        command = f"--edges {row['edges']} " if row["edges"] != 10**9 else ""
        command += f"--features {row['features']} " if row["features"] != _FEATURES else ""
        command += f"--memory {row['memory']}"
        command += f" --enforce {row['enforced']}" if row.get("enforced") else ""
        lines.append(
            f"| {row['edges'] / 1e9:g} billion edges, {row['nodes'] / 1e6:g} M nodes of "
            f"{row['features']} columns, 2 parts, an epoch of SAGE over 1 % of them, {also}, 2 "
            f"ranks | {told} (all processes) "
            f"| `benchmarks.billion {command}` |"
        )
    for row in rows_of("billion-budget")[-1:]:
        train = row["phases"]["train"]
        lines.append(
            f"| features of {row['feature_gib']:.2f} GiB, 2 ranks with {row['budget_gib']:.2f} GiB "
            f"together, an epoch of SAGE | {train['shared_once_peak_gib']:.2f} GiB resident with "
            f"libraries counted once, {train['anonymous_peak_gib']:.2f} GiB anonymous; "
            "the files were in the page cache "
            "| `benchmarks.billion --budget-run` |"
        )
    return lines
