"""The vocabulary that a dataset carries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tokscore.dataset.errors import InputError
from tokscore.dataset.integrity import damaged
from tokscore.dataset.reading import VOCABULARY_NAME, Dataset


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


class TokenText(NamedTuple):
    r"""Text and bytes that one id stands for.

    Attributes:
        text: Its characters; where it has none of its own, its bytes as `\xe4\xbd`, or `[id 7]` for an id
            that the vocabulary lacks.
        is_literal: Whether `text` is what a model reads, not a name for it.
    """

    text: str
    is_literal: bool


class TokenTexts:
    """The texts of a vocabulary."""

    def __init__(self, dataset: Dataset) -> None:
        """Read the vocabulary of `dataset`.

        Raises:
            InputError: It has none.
        """
        path = dataset.root / VOCABULARY_NAME
        if not path.is_file():
            raise InputError(
                f"{dataset.root} has no {VOCABULARY_NAME}, so its tokens have no text. "
                "Write the dataset again."
            )
        table = pq.read_table(path)
        self._rows = pc.sort_indices(table["token_id"]).to_numpy()
        self._ids = table["token_id"].to_numpy()[self._rows]
        self._texts, self._bytes = table["text"].combine_chunks(), table["bytes"].combine_chunks()

    def of(self, token_ids: Iterable[int]) -> list[TokenText]:
        """The text of each id."""
        wanted = np.fromiter(token_ids, np.int64)
        unique, inverse = np.unique(wanted, return_inverse=True)
        at = np.searchsorted(self._ids, unique)
        known = at < len(self._ids)
        known[known] = self._ids[at[known]] == unique[known]
        texts = [
            self._text(int(self._rows[row])) if is_known else TokenText(f"[id {token_id}]", False)
            for token_id, row, is_known in zip(unique.tolist(), at.tolist(), known.tolist(), strict=True)
        ]
        return [texts[i] for i in inverse.tolist()]

    def _text(self, row: int) -> TokenText:
        text, raw = self._texts[row].as_py(), self._bytes[row].as_py()
        if raw is None:
            return TokenText(text, True)
        try:
            return TokenText(raw.decode("utf-8"), True)
        except UnicodeDecodeError:
            return TokenText("".join(f"\\x{byte:02x}" for byte in raw), False)
