"""Questions about speed and memory, one command each; a wrong answer reports no time."""

from siafu.memory import share_one_arena

share_one_arena()  # before torch is loaded, as the `siafu` command does
