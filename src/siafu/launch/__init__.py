"""Starting ranks on this machine or under torchrun."""

from siafu.collector import collector_rests

with collector_rests():  # every rank begins here
    from siafu.launch.fit import Run, fit, resume_run, start_run, under_torchrun
    from siafu.launch.infer import infer
    from siafu.launch.prepare import prepare_parts
    from siafu.launch.stop import TERMINATED_CODE, ending_cleanly

__all__ = [
    "TERMINATED_CODE",
    "Run",
    "ending_cleanly",
    "fit",
    "infer",
    "prepare_parts",
    "resume_run",
    "start_run",
    "under_torchrun",
]
