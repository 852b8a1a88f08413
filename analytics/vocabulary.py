"""The vocabulary that a dataset carries."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from tokscore.analytics.integrity import damaged
from tokscore.rendering.dataset import VOCABULARY_NAME, Dataset


def read_vocabulary(
    dataset: Dataset, columns: Sequence[str], token_ids: set[int] | None = None
) -> pa.Table | None:
    """Some or all rows of the vocabulary table; None where a dataset has none.

    Raises:
        InputError: It is damaged.
    """
    path = dataset.root / VOCABULARY_NAME
    if not path.is_file():
        return None
    filters = None if token_ids is None else [("token_id", "in", token_ids)]
    try:
        return pq.read_table(path, columns=list(columns), filters=filters)
    except (OSError, pa.ArrowInvalid) as error:
        raise damaged(path, error) from error


def vocabulary_bytes(dataset: Dataset) -> dict[int, bytes]:
    """Bytes of the ids of a dataset's vocabulary, where they are known.

    Raises:
        InputError: The vocabulary is damaged.
    """
    table = read_vocabulary(dataset, ["token_id", "bytes"])
    if table is None:
        return {}
    pairs = zip(table["token_id"].to_pylist(), table["bytes"].to_pylist(), strict=True)
    return {token_id: raw for token_id, raw in pairs if raw is not None}
