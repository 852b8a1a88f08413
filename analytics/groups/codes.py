"""Columns of values as codes: an index into the values that occur, for each row."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokscore.analytics.groups.grouping import GroupValue

Codes = NDArray[np.int64]


class Encoded(NamedTuple):
    """One column as codes.

    Attributes:
        codes: int64 [rows], indices into `values`.
        values: That may occur.
    """

    codes: Codes
    values: list[GroupValue]


def encode_column(column: pa.ChunkedArray) -> Encoded:
    """The codes of a column; null is a value like others."""
    if not pa.types.is_dictionary(column.type):
        column = pc.dictionary_encode(column, null_encoding="encode")
    array = column.unify_dictionaries().combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks else pa.DictionaryArray.from_arrays([], [])
    values = array.dictionary.to_pylist()
    indices = array.indices
    if indices.null_count:
        indices, values = indices.fill_null(len(values)), [*values, None]
    return Encoded(indices.to_numpy().astype(np.int64), values)
