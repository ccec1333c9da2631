"""A page that shows what runs did: one HTML file that needs nothing else."""

from siafu.report.page import write_report
from siafu.report.told import ToldRun, read_told

__all__ = ["ToldRun", "read_told", "write_report"]
