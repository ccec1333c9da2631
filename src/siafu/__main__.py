"""`python -m siafu` and `torchrun -m siafu` are the `siafu` command."""

from siafu.cli.main import main

main()
