"""Where a rank's rows live and how rows of other ranks are reached."""

from siafu.shard.shard import Shard, open_shard, require

__all__ = ["Shard", "open_shard", "require"]
