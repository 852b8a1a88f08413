"""Sequences in rounds whose hidden states the disk has room for."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tokscore.dataset.errors import TokscoreError
from tokscore.scoring.engines.checkpoint.config import load_config
from tokscore.scoring.engines.contract import TokenSequence

if TYPE_CHECKING:
    from tokscore.scoring.engines.spec import EngineSpec

# Hidden states on disk at a time: at most this, and this share of what is free.
MAX_BYTES = 64 * 2**30
_FREE_SHARE = 0.5
# Numbers of a hidden state where the configuration does not say.
_WIDTH = 2**14


class StateSizes(NamedTuple):
    """What the first model leaves on the disk.

    Attributes:
        row_bytes: Of the hidden state of a token.
        head_bytes: Of its head.
    """

    row_bytes: int
    head_bytes: int

    @classmethod
    def of(cls, spec: EngineSpec) -> StateSizes:
        """As the configuration of a model says."""
        model = spec.model
        config = load_config(model.path, model.name, trust_remote_code=model.trust_remote_code)
        width = getattr(config.get_text_config(), "hidden_size", None)
        item_bytes = 4 if spec.identity.dtype == "float32" else 2
        row_bytes = item_bytes * (width if isinstance(width, int) else _WIDTH)
        return cls(row_bytes, row_bytes * model.vocab_size)


class Rounds:
    """Draws sequences as the disk has room for them."""

    def __init__(
        self, sequences: Iterable[TokenSequence], folder: Path, sizes: StateSizes, max_bytes: int = MAX_BYTES
    ) -> None:
        """Nothing is drawn yet.

        Args:
            sequences: In the order in which they are compared.
            folder: On the disk of the hidden states.
            sizes: Of these.
            max_bytes: Of hidden states at a time.
        """
        self._sequences = iter(sequences)
        self._folder, self._sizes, self._max_bytes = folder, sizes, max_bytes

    def take(self) -> dict[int, TokenSequence]:
        """The sequences of the next round, without those that want no row, by the place of their first row.

        Raises:
            TokscoreError: The disk has no room for the first of them.
        """
        free = shutil.disk_usage(self._folder).free - self._sizes.head_bytes
        room = min(self._max_bytes, int(free * _FREE_SHARE))
        found: dict[int, TokenSequence] = {}
        n_rows = 0
        for sequence in self._sequences:
            if not sequence.n_rows:
                continue
            n_bytes = (n_rows + sequence.n_rows) * self._sizes.row_bytes
            if found and n_bytes > room:
                self._sequences = chain([sequence], self._sequences)
                break
            if n_bytes > free:
                raise self._no_room(sequence.n_rows, n_bytes)
            # A copy, so that no view keeps a whole part alive.
            found[n_rows] = sequence._replace(token_ids=sequence.token_ids.copy())
            n_rows += sequence.n_rows
        return found

    def _no_room(self, n_rows: int, n_bytes: int) -> TokscoreError:
        free, needed = shutil.disk_usage(self._folder).free, n_bytes + self._sizes.head_bytes
        return TokscoreError(
            f"{self._folder}: {free:,} bytes are free; expected {needed:,}, for the "
            f"hidden states of the {n_rows:,} tokens of one conversation and the head of the first model.\n"
            "Set TOKSCORE_CACHE to a directory with more room, or use `engine='transformers'`."
        )
