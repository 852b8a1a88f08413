"""What was decided about the conversations of a dataset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from tokscore.analytics.selection.metrics import PLACE_COLUMNS
from tokscore.analytics.selection.spool import Spool
from tokscore.dataset.reading import Dataset

if TYPE_CHECKING:
    from numpy.typing import NDArray


class PartRecords(NamedTuple):
    """The records of the files that are in one part of a dataset.

    Attributes:
        rows: Id, file, line and whether it is kept of those that have numbers, in the order of the files.
        failed: Ids of the others.
    """

    rows: Iterator[tuple[str, str, int, bool]]
    failed: list[str]


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """The conversations of a dataset with what was decided about each.

    Two bytes of memory for each; the rest is in temporary files, which are deleted with the object.

    Attributes:
        dataset: Where they are.
        names: The columns that decided.
        decisions: Index into `texts` for every conversation with numbers, in the dataset's order; uint16.
        texts: Why conversations are left out, None of those that are kept.
        numbers: Their places and what decided.
        failed: Places of the records that failed, and why.
    """

    dataset: Dataset
    names: tuple[str, ...]
    decisions: NDArray[np.uint16]
    texts: tuple[str | None, ...]
    numbers: Spool
    failed: Spool

    @property
    def n_conversations(self) -> int:
        """Conversations, and records that failed."""
        return self.numbers.n_rows + self.failed.n_rows

    @property
    def n_kept(self) -> int:
        """Conversations that are kept."""
        return int(np.count_nonzero(self.decisions == 0))

    def reasons(self) -> dict[str, int]:
        """How many are left out by reason, most first."""
        counts = np.bincount(self.decisions, minlength=len(self.texts)).tolist()
        found = Counter({"failed": self.failed.n_rows})
        for text, n in zip(self.texts, counts, strict=True):
            if text is not None:
                found[text] += n
        return {text: n for text, n in sorted(found.items(), key=lambda item: (-item[1], item[0])) if n}

    def frames(self) -> Iterator[pl.DataFrame]:
        """`frame`, a part of the dataset at a time."""
        start = 0
        texts = pl.Series("reason", self.texts, pl.String)
        for frame in self.numbers.frames():
            decided = self.decisions[start : start + len(frame)]
            start += len(frame)
            yield frame.with_columns(texts.gather(decided))
        for frame in self.failed.frames():
            others = (pl.lit(None, self.numbers.schema[name]).alias(name) for name in self.names)
            yield frame.select(PLACE_COLUMNS).with_columns(
                *(other for name, other in zip(self.names, others, strict=True) if name not in PLACE_COLUMNS),
                frame["reason"],
            )

    def parts(self) -> Iterator[PartRecords]:
        """All records, a part of the dataset at a time."""
        start = 0
        for part in self.dataset.manifest.parts:
            places = self.numbers.frame(part.index).select(PLACE_COLUMNS)
            is_kept = self.decisions[start : start + len(places)] == 0
            start += len(places)
            rows = places.with_columns(is_kept=is_kept).iter_rows()
            yield PartRecords(rows, self.failed.frame(part.index)["conversation_id"].to_list())

    @property
    def frame(self) -> pl.DataFrame:
        """`conversation_id`, `source_file`, `source_line`, the numbers that decided, and `reason`.

        That says why the conversation is left out, and is null where it is kept. In the order of the dataset,
        records that failed last. All are held in memory: `frames` gives some at a time.
        """
        schema = {**self.numbers.schema, "reason": pl.String()}
        return pl.concat([pl.DataFrame(schema=schema), *self.frames()])
