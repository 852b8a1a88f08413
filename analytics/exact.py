"""Divergences over the whole vocabulary: a table with a row for each token, and its means per group."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tokscore.analytics.comparison.compare import scored_vocab_size
from tokscore.analytics.comparison.confidence import (
    MAX_CONFIDENT_GROUPS,
    NamedConfidence,
    confidence_of_means,
)
from tokscore.analytics.comparison.measures import MEANINGS, meaning, ranges
from tokscore.analytics.comparison.pairing import PairBatch, Pairing
from tokscore.analytics.comparison.reduction import Clusters
from tokscore.analytics.divergence.intervals import checked_alphas
from tokscore.analytics.groups.grouping import Grouping, GroupKey, group_order, parse_group_by, place_metadata
from tokscore.analytics.statistics.bootstrap import N_REPLICATES
from tokscore.analytics.statistics.multiplicity import replicates_for
from tokscore.analytics.statistics.totals import ExactTotals
from tokscore.dataset.choices import OnError
from tokscore.dataset.reading import Dataset
from tokscore.dataset.schema import TOKENS, DatasetKind
from tokscore.dataset.writing import temporary_name
from tokscore.scoring.engines.contract import TokenSequence

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokscore.analytics.divergence.topk import FloatArray
    from tokscore.scoring.exact import ExactTokens

    Measure = Callable[[Iterable[TokenSequence]], Iterator[tuple[int, ExactTokens]]]

_ATTRIBUTION = ("position", "message_index", "role", "source", "is_content", "is_sampled")
# Natural logarithms, float64; a KL is inf where its second model rules out what the first allows.
VALUES = (
    "teacher_logprob",
    "student_logprob",
    "kl_teacher_student",
    "kl_student_teacher",
    "total_variation",
    "teacher_entropy",
    "student_entropy",
)
_MEANINGS = {
    "teacher_logprob": ("Teacher's logprob of the token", "nats"),
    "student_logprob": ("Student's logprob of the token", "nats"),
    "teacher_entropy": MEANINGS["entropy_teacher"],
    "student_entropy": MEANINGS["entropy_student"],
    "kl_teacher_student": ("KL(teacher || student); inf where the student rules out a token", "nats"),
    "kl_student_teacher": ("KL(student || teacher); inf where the teacher rules out a token", "nats"),
}
_KLS = ("kl_teacher_student", "kl_student_teacher")


def gjs_name(alpha: float) -> str:
    """Name of the column with the GJS of this alpha."""
    return f"gjs_{alpha:g}"


def exact_schema(alphas: Sequence[float]) -> pa.Schema:
    """One row per token that both models gave a logprob: whose it is, and the values in nats."""
    return pa.schema(
        [
            *(TOKENS.field(name) for name in ("conversation_id", "branch", *_ATTRIBUTION)),
            *(_value_field(name) for name in (*VALUES, *map(gjs_name, alphas))),
        ]
    )


def _value_field(name: str) -> pa.Field:
    what, unit = _MEANINGS[name] if name in _MEANINGS else meaning(name)
    metadata = {"description": f"{what}.", "unit": unit}
    return pa.field(name, pa.float64(), nullable=False, metadata=metadata)


def write_exact(
    path: Path,
    teacher: Path | str,
    student: Path | str,
    measure: Measure,
    *,
    alphas: Sequence[float],
    on_error: OnError = OnError.FAIL,
    without: Collection[tuple[str, int]] = (),
) -> int:
    """Compare two models over the whole vocabulary and write a row for each token.

    Args:
        path: Parquet file, schema `exact_schema`; it appears when it is whole.
        teacher: Score dataset; its tokens, where both models gave a logprob, are compared.
        student: Score dataset of the same conversations.
        measure: `scoring.exact.ModelPair.measure` of the models that scored the datasets.
        alphas: As the models compare with.
        on_error: What a conversation does whose tokens differ or are out of order.
        without: Conversation ids and branches to leave out, such as those that `diff_report` skipped.

    Returns:
        Number of rows.

    Raises:
        UsageError: An alpha is not between 0 and 1, or two are as good as equal.
        InputError: The datasets cannot be compared, or a conversation and errors are not skipped.
        EngineError: A model failed.
    """
    alphas = checked_alphas(alphas)
    pairing = Pairing(
        Dataset(Path(teacher), kind=DatasetKind.SCORES),
        Dataset(Path(student), kind=DatasetKind.SCORES),
        teacher_columns=["logprob", *_ATTRIBUTION],
        student_columns=["logprob"],
        on_error=on_error,
    )
    waiting: dict[int, PairBatch] = {}

    def sequences() -> Iterator[TokenSequence]:
        for key, pair in enumerate(pairing.batches(1)):
            wanted = _compared(pair)[1:]
            is_left_out = any(place.key in without for place in pair.places)
            if wanted.any() and not is_left_out:
                waiting[key] = pair
                yield TokenSequence(key, pair.teacher["token_id"].to_numpy(), wanted)

    schema = exact_schema(alphas)
    n_rows = 0
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_name(path)
    try:
        with pq.ParquetWriter(temporary, schema, compression="zstd", compression_level=3) as writer:
            for key, values in measure(sequences()):
                table = _rows(waiting.pop(key), values, schema)
                # A conversation is one row group: what sums the rows reads one at a time.
                writer.write_table(table, row_group_size=table.num_rows)
                n_rows += table.num_rows
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return n_rows


def _compared(pair: PairBatch) -> NDArray[np.bool_]:
    both = pc.and_(pc.is_valid(pair.teacher["logprob"]), pc.is_valid(pair.student["logprob"]))
    compared: NDArray[np.bool_] = both.to_numpy()
    return compared


def _rows(pair: PairBatch, values: ExactTokens, schema: pa.Schema) -> pa.Table:
    owners = pair.teacher.select(list(_ATTRIBUTION)).filter(pa.array(_compared(pair)))
    n = owners.num_rows
    columns = [
        pa.array([pair.places[0].conversation_id] * n, pa.string()),
        pa.array(np.full(n, pair.places[0].branch, np.int32)),
        *owners.columns,
        *(pa.array(column) for column in values[: len(VALUES)]),
        *(pa.array(column) for column in values.gjs),
    ]
    return pa.table(columns, schema=schema)


@dataclass(frozen=True, slots=True)
class ExactRow:
    """Means per token of one group over the whole vocabulary, in nats.

    Attributes:
        group: What its tokens share.
        n_tokens: Tokens compared.
        n_infinite: Tokens with an infinite KL, by the name of the KL; its mean is None then.
        values: Means by the names in `VALUES` and of each `gjs_ALPHA`.
        confidence: Of every divergence; empty without tokens, and where groups are narrow or many.
    """

    group: GroupKey
    n_tokens: int
    n_infinite: Mapping[str, int]
    values: Mapping[str, float | None]
    confidence: tuple[NamedConfidence, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        counts = {f"{name}_n_infinite": n for name, n in self.n_infinite.items()}
        confidence = {each.name: each.to_dict() for each in self.confidence}
        return {
            "group": self.group,
            "n_tokens": self.n_tokens,
            **self.values,
            **counts,
            "confidence": confidence,
        }


@dataclass(frozen=True, slots=True)
class ExactReport:
    """Means of an exact table.

    Attributes:
        by: What the groups share.
        names: Of the values, in order.
        groups: One row per group, tokens of no message last.
        total: All tokens together.
        teacher_vocab_size: Ids that the teacher has; an id has probability 0 in the model that lacks it.
        student_vocab_size: Ids that the student has.
    """

    by: Grouping
    names: tuple[str, ...]
    groups: tuple[ExactRow, ...]
    total: ExactRow
    teacher_vocab_size: int
    student_vocab_size: int

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            "by": self.by.value,
            "groups": [row.to_dict() for row in self.groups],
            "total": self.total.to_dict(),
            "teacher_vocab_size": self.teacher_vocab_size,
            "student_vocab_size": self.student_vocab_size,
        }


def exact_report(
    path: Path, teacher: Path | str, student: Path | str, *, by: str | Sequence[str] = "role"
) -> ExactReport:
    """Means of what `write_exact` wrote; they do not depend on the order of the conversations.

    Args:
        path: The table.
        teacher: Its dataset, also for the metadata of its conversations.
        student: Its dataset.
        by: As `parse_group_by` takes it.

    Raises:
        UsageError: `by` is not allowed.
        InputError: A dataset does not say which model scored it.
    """
    grouping = parse_group_by(by)
    datasets = Dataset(Path(teacher)), Dataset(Path(student))
    metadata = _metadata(datasets[0], grouping)
    file = pq.ParquetFile(path)
    names = tuple(name for name in file.schema_arrow.names if name in VALUES or name.startswith("gjs_"))
    groups: dict[GroupKey, _Means] = {}
    total = _Means(names, with_conversations=True)
    for index in range(file.num_row_groups):
        rows = pl.DataFrame(file.read_row_group(index))
        conversation = rows["conversation_id"][0], rows["branch"][0]
        rows = rows.with_columns(
            pl.lit(values.get(conversation)).alias(name) for name, values in metadata.items()
        )
        sums = rows.group_by(grouping.names, maintain_order=True).agg(_aggregates(names))
        for *values, n_tokens, summed, infinite in sums.iter_rows():
            key = grouping.key(values)
            if key not in groups:
                groups[key] = _Means(names, with_conversations=not grouping.is_narrow)
            groups[key].add(conversation, n_tokens, summed.values(), infinite.values())
        n_tokens, summed, infinite = rows.select(_aggregates(names)).row(0)
        total.add(conversation, n_tokens, summed.values(), infinite.values())
    alphas = [float(name.removeprefix("gjs_")) for name in names if name.startswith("gjs_")]
    n_replicates = replicates_for(len(groups))
    return ExactReport(
        grouping,
        names,
        tuple(
            groups[key].row(key, alphas, None if len(groups) > MAX_CONFIDENT_GROUPS else n_replicates)
            for key in sorted(groups, key=group_order)
        ),
        total.row(None, alphas, N_REPLICATES),
        *(scored_vocab_size(dataset) for dataset in datasets),
    )


def _aggregates(names: Sequence[str]) -> list[pl.Expr]:
    return [
        pl.len(),
        pl.struct(
            pl.when(pl.col(name).is_finite()).then(pl.col(name)).sum().alias(name) for name in names
        ).alias("sums"),
        pl.struct(pl.col(name).is_infinite().sum().alias(name) for name in names).alias("infinite"),
    ]


def _metadata(dataset: Dataset, by: Grouping) -> dict[str, dict[tuple[str, int], object]]:
    if not by.metadata_names:
        return {}
    found: dict[str, dict[tuple[str, int], object]] = {name: {} for name in by.metadata_names}
    for place in dataset.places():
        for name, values in found.items():
            values[place.key] = place_metadata(place, name)
    return found


class _Means:
    """Running sums of one group, and where confidence is wanted those of every conversation."""

    def __init__(self, names: Sequence[str], *, with_conversations: bool) -> None:
        self._names = names
        self._sums = ExactTotals(len(names))
        self._n_infinite = [0] * len(names)
        self._n_tokens = 0
        self._with_conversations = with_conversations
        self._conversations: list[tuple[str, int]] = []
        self._rows: list[FloatArray] = []
        self._lengths: list[int] = []

    def add(
        self, conversation: tuple[str, int], n_tokens: int, sums: Iterable[float], infinite: Iterable[int]
    ) -> None:
        """Add the tokens of one conversation."""
        row, n_infinite = np.array(list(sums), np.float64), list(infinite)
        self._n_tokens += n_tokens
        self._sums.add(row[None], np.zeros(1, np.int64))
        self._n_infinite = [mine + n for mine, n in zip(self._n_infinite, n_infinite, strict=True)]
        if self._with_conversations:
            self._conversations.append(conversation)
            self._rows.append(np.where(np.array(n_infinite) > 0, np.inf, row))
            self._lengths.append(n_tokens)

    def row(self, group: GroupKey, alphas: Sequence[float], n_replicates: int | None) -> ExactRow:
        """The means, with confidence limits from so many replicates."""
        infinite = dict(zip(self._names, self._n_infinite, strict=True))
        values = {
            name: None if infinite[name] or not self._n_tokens else total / self._n_tokens
            for name, total in zip(self._names, self._sums.value(0), strict=True)
        }
        confidence: tuple[NamedConfidence, ...] = ()
        if n_replicates is not None and self._conversations:
            measured = [index for index, name in enumerate(self._names) if name in ranges(alphas)]
            order = sorted(range(len(self._conversations)), key=self._conversations.__getitem__)
            clusters = Clusters(
                [self._conversations[index] for index in order],
                np.stack(self._rows)[order][:, measured],
                np.array(self._lengths, np.int64)[order],
            )
            names = [self._names[index] for index in measured]
            confidence = confidence_of_means(names, clusters, alphas, n_replicates)
        return ExactRow(group, self._n_tokens, {name: infinite[name] for name in _KLS}, values, confidence)
