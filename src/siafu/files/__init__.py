"""Files and folders replaced whole, small files read within limits, those with a URL, and locks."""

from siafu.files.home import cache_folder
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
from siafu.files.remote import (
    check_url,
    fetch_file,
    fetched_bytes,
    is_url,
    read_url,
    remove_url,
    send_file,
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
    "cache_folder",
    "check_url",
    "clear_unheld",
    "fetch_file",
    "fetched_bytes",
    "is_locked",
    "is_url",
    "locked",
    "mapping_of",
    "open_regular",
    "parse_json",
    "publish",
    "read_json",
    "read_mapping",
    "read_regular",
    "read_text",
    "read_url",
    "remove_url",
    "replacing",
    "replacing_folder",
    "scratch_folder",
    "send_file",
    "sync_file",
    "sync_folder",
    "temporary_beside",
    "write_bytes_atomically",
    "write_text_atomically",
]
