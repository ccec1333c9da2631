"""Starting ranks on this machine or under torchrun."""

from siafu.collector import collector_rests

with collector_rests():  # every rank begins here
    from siafu.launch.api import load, load_dynamic, open_run, partition, resume
    from siafu.launch.fit import fit, resume_run, start_run
    from siafu.launch.infer import infer, write_inference
    from siafu.launch.planning import make_plan
    from siafu.launch.prepare import prepare_parts
    from siafu.launch.ranks import under_torchrun
    from siafu.launch.run import Run

__all__ = [
    "Run",
    "fit",
    "infer",
    "load",
    "load_dynamic",
    "make_plan",
    "open_run",
    "partition",
    "prepare_parts",
    "resume",
    "resume_run",
    "start_run",
    "under_torchrun",
    "write_inference",
]
