"""`python -m siafu.launch RUN JOB` is one rank of a local run."""

import sys

from siafu.collector import spare_collector
from siafu.launch.rank import main

spare_collector()
sys.exit(main(*sys.argv[1:]))
