"""`python -m siafu.launch RUN JOB` is one rank of a local run."""

import sys

from siafu.launch.rank import main

sys.exit(main(*sys.argv[1:]))
