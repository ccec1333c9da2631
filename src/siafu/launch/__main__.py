"""`python -m siafu.launch RUN JOB` is a rank, `--warm SOCKET` what local ranks are forked from."""

import socket
import sys

from siafu.collector import spare_collector
from siafu.launch.apart import shared_job
from siafu.launch.rank import main
from siafu.launch.warm import WARM, serve
from siafu.ops import load_compiler

arguments = sys.argv[1:]
if arguments[0] == WARM:
    load_compiler()
spare_collector()
if arguments[0] == WARM:
    arguments = serve(socket.socket(fileno=int(arguments[1])))
sys.exit(main(*arguments, sharing=shared_job))
