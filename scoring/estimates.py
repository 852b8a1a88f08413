"""How large a score dataset will be, and how long scoring takes, before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from tokscore.dataset.claims.commit import part_name
from tokscore.dataset.schema import SCORES, DatasetKind
from tokscore.dataset.table_files import TableFile
from tokscore.scoring.columns import GIVEN

# Finished parts that are looked at.
SAMPLED_PARTS = 64
# Key of the Parquet metadata of a part; the engine's rate while it was written.
RATE_KEY = "tokscore.tokens_per_s"


class RunEstimate(NamedTuple):
    """Estimated size and time of a run.

    Attributes:
        bytes_per_token: Of the score table.
        is_measured: Taken from finished parts; otherwise an upper limit, from the schema.
        tokens_per_s: Tokens that the engine computes a second, as told or as finished parts had it; None
            where nobody knows.
    """

    bytes_per_token: float
    is_measured: bool
    tokens_per_s: float | None

    def size_bytes(self, n_tokens: int) -> int:
        """Bytes of the score table."""
        return round(n_tokens * self.bytes_per_token)

    def elapsed_s(self, n_computed: int) -> float | None:
        """Seconds in the engine for so many tokens that it computes; None without a rate."""
        return None if not self.tokens_per_s else n_computed / self.tokens_per_s


def estimate_run(
    out: Path, finished: set[int], *, top_k: int, n_given: int = 0, tokens_per_s: float | None = None
) -> RunEstimate:
    """From finished parts in `out`, where there are some, otherwise from the schema.

    Args:
        out: The dataset.
        finished: Indices of its finished parts.
        top_k: Alternatives at every position.
        n_given: Given ids at every position.
        tokens_per_s: A rate that the user expects.
    """
    n_rows = n_bytes = 0
    rates: list[float] = []
    parts = sorted(finished)
    for part in parts[:: -(-len(parts) // SAMPLED_PARTS) or 1]:
        path = out / DatasetKind.SCORES.value / part_name(part)
        with TableFile(path, DatasetKind.SCORES) as file:
            found = file.metadata
        n_rows += found.num_rows
        n_bytes += path.stat().st_size
        rate = (found.metadata or {}).get(RATE_KEY.encode())
        if rate:
            rates.append(float(rate))
    return RunEstimate(
        n_bytes / n_rows
        if n_rows
        else sum(_width(field.type, n_given if field.name in GIVEN else top_k) for field in SCORES),
        n_rows > 0,
        tokens_per_s or (sorted(rates)[len(rates) // 2] if rates else None),
    )


def _width(dtype: pa.DataType, n_listed: int) -> float:
    """Bytes of one value; strings repeat and take next to none."""
    if pa.types.is_list(dtype):
        return n_listed * _width(dtype.value_type, n_listed)
    return 0 if pa.types.is_string(dtype) else float(dtype.bit_width) / 8
