"""Files and folders replaced whole, small files read within limits, and locks."""

from siafu.files.locks import LockedError, clear_unheld, is_locked, locked, scratch_folder
from siafu.files.reading import (
    mapping_of,
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
    replacing_folder,
    sync_file,
    sync_folder,
    temporary_beside,
    write_bytes_atomically,
    write_text_atomically,
)

__all__ = [
    "LockedError",
    "clear_unheld",
    "is_locked",
    "locked",
    "mapping_of",
    "open_regular",
    "parse_json",
    "publish",
    "read_json",
    "read_mapping",
    "read_regular",
    "read_text",
    "replacing",
    "replacing_folder",
    "scratch_folder",
    "sync_file",
    "sync_folder",
    "temporary_beside",
    "write_bytes_atomically",
    "write_text_atomically",
]
