"""Files that are replaced whole and stay after a power cut; small ones read within limits."""

from siafu.files.reading import (
    open_regular,
    parse_json,
    read_json,
    read_mapping,
    read_regular,
    read_text,
)
from siafu.files.writing import (
    publish,
    replacing,
    sync_file,
    sync_folder,
    write_bytes_atomically,
    write_text_atomically,
)

__all__ = [
    "open_regular",
    "parse_json",
    "publish",
    "read_json",
    "read_mapping",
    "read_regular",
    "read_text",
    "replacing",
    "sync_file",
    "sync_folder",
    "write_bytes_atomically",
    "write_text_atomically",
]
