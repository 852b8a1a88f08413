"""The texts of token ids, from the vocabulary that a dataset carries."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc

from tokscore.dataset.reading import Dataset


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
            InputError: It has none, or a damaged one.
        """
        table = dataset.vocabulary()
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
