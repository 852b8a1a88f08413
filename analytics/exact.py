"""Divergences over the whole vocabulary: a table with a row for each token, and its means per group."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tokscore.analytics.comparison.compare import scored_vocab_size
from tokscore.analytics.comparison.confidence import (
    MAX_CONFIDENT_GROUPS,
    NamedConfidence,
    confidence_of_means,
)
from tokscore.analytics.comparison.off_policy import finite
from tokscore.analytics.comparison.pairing import PairBatch, Pairing
from tokscore.analytics.comparison.reduction import Group, Reduction, reduce_batch
from tokscore.analytics.divergence.intervals import checked_alphas
from tokscore.analytics.divergence.measures import Measure, TokenMeasures, alpha_name, measures, outside
from tokscore.analytics.groups.grouping import Grouping, GroupKey, group_order, parse_group_by
from tokscore.analytics.statistics.bootstrap import N_REPLICATES
from tokscore.analytics.statistics.multiplicity import replicates_for
from tokscore.dataset.choices import OnError
from tokscore.dataset.errors import EngineError
from tokscore.dataset.reading import Dataset
from tokscore.dataset.schema import TOKENS, DatasetKind
from tokscore.dataset.writing import temporary_name
from tokscore.scoring.engines.contract import TokenSequence

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokscore.analytics.divergence.topk import FloatArray
    from tokscore.scoring.exact import ExactTokens

    CompareTokens = Callable[[Iterable[TokenSequence]], Iterator[tuple[int, ExactTokens]]]

_ATTRIBUTION = ("position", "message_index", "role", "source", "is_content", "is_sampled")


def exact_measures(alphas: Sequence[float]) -> list[Measure]:
    """Measures that have a value over the whole vocabulary."""
    return [measure for measure in measures(alphas) if measure.is_exact]


def exact_schema(alphas: Sequence[float]) -> pa.Schema:
    """One row per token that both models gave a logprob: whose it is, and the values in nats."""
    fields = [TOKENS.field(name) for name in ("conversation_id", "branch", *_ATTRIBUTION)]
    for measure in exact_measures(alphas):
        may_be_infinite = measure.may_be_unbounded and measure.is_gap
        infinite = "; inf where the second model rules out a token" if may_be_infinite else ""
        metadata = {"description": f"{measure.meaning}{infinite}.", "unit": measure.unit}
        fields.append(pa.field(measure.name, pa.float64(), nullable=False, metadata=metadata))
    return pa.schema(fields)


def write_exact(
    path: Path,
    teacher: Path | str,
    student: Path | str,
    compare: CompareTokens,
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
        compare: `scoring.exact.ModelPair.measure` of the models that scored the datasets.
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
            for key, values in compare(sequences()):
                table = _rows(waiting.pop(key), values, alphas, schema)
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


def _rows(pair: PairBatch, values: ExactTokens, alphas: Sequence[float], schema: pa.Schema) -> pa.Table:
    owners = pair.teacher.select(list(_ATTRIBUTION)).filter(pa.array(_compared(pair)))
    n = owners.num_rows
    columns = {
        "conversation_id": pa.array([pair.places[0].conversation_id] * n, pa.string()),
        "branch": pa.array(np.full(n, pair.places[0].branch, np.int32)),
        **dict(zip(_ATTRIBUTION, owners.columns, strict=True)),
    }
    return pa.table(columns | exact_values(values, alphas), schema=schema)


def exact_values(found: ExactTokens, alphas: Sequence[float]) -> dict[str, FloatArray]:
    """Every exact measure by name.

    Raises:
        EngineError: One is out of its range.
    """
    given: dict[str, FloatArray] = found._asdict()
    given |= {alpha_name("gjs", alpha): row for alpha, row in zip(alphas, found.gjs, strict=True)}
    tokens, values = TokenMeasures(tuple(alphas), {}), {}
    for measure in exact_measures(alphas):
        if measure.compute is None:
            column = given[measure.name]
        else:
            computed = measure.compute(tokens, measure.alpha)
            column = computed[0] if isinstance(computed, tuple) else computed
        values[measure.name] = column
        tokens.columns.update(dict.fromkeys(measure.columns, column))
        wrong = outside(measure, column, column)
        if wrong:
            least, largest = measure.range
            raise EngineError(
                f"{measure.name} is {column[wrong[0]]:g} over the whole vocabulary; expected {least:g} to "
                f"{largest:g}. Look at the weights, or try another dtype."
            )
    return values


@dataclass(frozen=True, slots=True)
class ExactRow:
    """Means per token of one group over the whole vocabulary, in nats.

    Attributes:
        group: What its tokens share.
        n_tokens: Tokens compared.
        n_infinite: Tokens with an infinite KL, by the name of the KL; its mean is None then.
        values: Means by the names of `exact_measures`.
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
        measures: Of the values, in order.
        groups: One row per group, tokens of no message last.
        total: All tokens together.
        teacher_vocab_size: Ids that the teacher has; an id has probability 0 in the model that lacks it.
        student_vocab_size: Ids that the student has.
    """

    by: Grouping
    measures: tuple[Measure, ...]
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
    places = {place.key: place for place in datasets[0].places()}
    file = pq.ParquetFile(path)
    alphas = [float(name.removeprefix("gjs_")) for name in file.schema_arrow.names if name.startswith("gjs_")]
    exact = exact_measures(alphas)
    reduction = Reduction([measure.name for measure in exact if measure.is_gap], grouping)
    for index in range(file.num_row_groups):
        rows = file.read_row_group(index)
        place = places[rows["conversation_id"][0].as_py(), rows["branch"][0].as_py()]
        columns = {measure.name: rows[measure.name].to_numpy() for measure in exact}
        columns |= {
            f"n_infinite_{measure.name}": np.isinf(columns[measure.name]).astype(np.float64)
            for measure in exact
            if measure.may_be_unbounded and measure.is_gap
        }
        indices, starts = np.arange(rows.num_rows), np.array([0, rows.num_rows])
        reduction.add(reduce_batch(columns, indices, [place], starts, rows, grouping, sketched=None))
    groups = {key: reduction.group(key) for key in sorted(reduction.keys(), key=group_order)}
    n_replicates = None if len(groups) > MAX_CONFIDENT_GROUPS else replicates_for(len(groups))
    return ExactReport(
        grouping,
        tuple(exact),
        tuple(_row(key, group, alphas, n_replicates) for key, group in groups.items()),
        _row(None, reduction.total(), alphas, N_REPLICATES),
        *(scored_vocab_size(dataset) for dataset in datasets),
    )


def _row(key: GroupKey, group: Group, alphas: Sequence[float], n_replicates: int | None) -> ExactRow:
    """The means of a group, with confidence limits from so many replicates."""
    names = [measure.name for measure in exact_measures(alphas)]
    counts = {name: f"n_infinite_{name}" for name in names}
    return ExactRow(
        key,
        group.n_tokens,
        {name: int(group.sums[count]) for name, count in counts.items() if count in group.sums},
        {name: finite(group.sums[name] / group.n_tokens) for name in names},
        () if n_replicates is None else confidence_of_means(group.clusters, alphas, n_replicates),
    )
