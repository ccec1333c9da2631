"""What tells how a CSV file is written: its name, and the marks of its first rows."""

import re
from pathlib import Path

import pyarrow as pa

TAB_ENDINGS = (".tsv", ".tsv.gz")
CSV_ENDINGS = (".csv", ".csv.gz", ".csv.zst", ".csv.bz2", *TAB_ENDINGS)
_OTHER_DELIMITERS = (";", "\t", "|")
"""What separates the columns of CSV files whose header has no comma."""
_READ_BYTES = 1 << 20


def is_csv(file: Path) -> bool:
    """Return whether a file is named as CSV files are."""
    return file.name.lower().endswith(CSV_ENDINGS)


def usual_delimiter(file: Path) -> str:
    """Return what separates the columns of files of this name."""
    return "\t" if file.name.lower().endswith(TAB_ENDINGS) else ","


def delimiter(file: Path) -> str:
    """Return what separates the columns: the first usual mark that the first line has."""
    usual = usual_delimiter(file)
    with pa.input_stream(file) as stream:
        line = stream.read(_READ_BYTES).split(b"\n", 1)[0]
    marks = (usual, *_OTHER_DELIMITERS)
    return next((mark for mark in marks if mark.encode() in line), usual)


_COMMA = re.compile(rb"[;\t|]\s*-?\d+,\d+\s*(?=[;\t|\r\n])")
_POINT = re.compile(rb"[;\t|]\s*-?\d+\.\d+\s*(?=[;\t|\r\n])")


def decimal_point(file: Path) -> str:
    """Return the mark before fractions: a comma where the first rows have such and no points."""
    if delimiter(file) == ",":
        return "."
    with pa.input_stream(file) as stream:
        rows = stream.read(_READ_BYTES)
    return "," if _COMMA.search(rows) and not _POINT.search(rows) else "."


def is_packed(file: Path) -> bool:
    """Return whether a CSV file is compressed."""
    return not file.name.lower().endswith((".csv", ".tsv"))
