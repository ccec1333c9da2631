"""For any cells, the kind that is decided on is the one that holds them, gaps and all."""

import math

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from siafu.ingest.tables.cells import MARKS, booleans_of, dates_of, numbers_of, words_of
from siafu.ingest.tables.features import FeatureReader, place_categories
from siafu.ingest.tables.files import Piece
from siafu.ingest.tables.kinds import Decided

MARK = st.sampled_from([*MARKS, "NA", " n/a ", "None"])


def read(cells: list[str | None], kind: str) -> tuple[np.ndarray, FeatureReader]:
    """Return what a reader makes of a text column, and the reader."""
    batch = pa.record_batch({"c": pa.array(cells, pa.string())})
    piece, reader = Piece(__file__, 0, batch), FeatureReader(Decided("c", kind))
    block = reader.block(piece)
    place_categories(block, [reader])
    return block[:, 0], reader


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.floats(allow_nan=False, allow_infinity=False, width=32).map(lambda f: (str(f), f)),
            st.integers(-(2**31), 2**31).map(lambda i: (f" {i} ", float(i))),
            MARK.map(lambda mark: (mark, math.nan)),
            st.none().map(lambda none: (none, math.nan)),
        ),
        min_size=1,
    )
)
def test_numbers_written_as_text_are_those_numbers(cells):
    values, reader = read([text for text, _ in cells], "number")
    want = np.array([value for _, value in cells], np.float64).astype(np.float32)
    np.testing.assert_array_equal(values, want)
    assert (reader.odd, int(reader.gaps_W[0])) == (0, int(np.isnan(want).sum()))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(st.none(), MARK, st.text(max_size=4)), min_size=1))
def test_categories_come_back_from_their_numbers(cells):
    values, reader = read(cells, "category")
    names = reader.categories.names()
    assert list(names) == sorted(names)
    words = words_of(pa.array(cells, pa.string()))
    for cell, value in zip(cells, values.tolist(), strict=True):
        if math.isnan(value):
            assert cell is None or cell.strip().lower() in MARKS or not cell.strip()
        else:
            assert names[int(value)] == pa.compute.utf8_trim_whitespace(cell).as_py()
    assert len(words.values) <= len(cells)


@settings(max_examples=100, deadline=None)
@given(st.datetimes())
def test_dates_are_days_since_1970(moment):
    moment = moment.replace(year=max(1800, min(2200, moment.year)), month=1)
    want = (moment - type(moment)(1970, 1, 1)).total_seconds() / 86_400
    for text in (moment.isoformat(), moment.isoformat(" ")):
        np.testing.assert_allclose(dates_of(pa.array([text], pa.large_string())), want, atol=1e-9)
    day = pa.array([moment.date().isoformat()], pa.large_string())
    assert dates_of(day)[0] == math.floor(want)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=6))
def test_no_text_is_of_two_kinds(text):
    values = pa.array([text.strip()], pa.large_string())
    kinds = [np.isfinite(of(values)[0]) for of in (numbers_of, booleans_of, dates_of)]
    assert sum(kinds) <= 1
