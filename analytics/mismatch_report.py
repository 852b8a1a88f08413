"""Recorded logprobs against scored ones: how far an engine that sampled is from the model that scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokscore.analytics.comparison import off_policy
from tokscore.analytics.comparison.compare import BATCH_TOKENS
from tokscore.analytics.comparison.off_policy import OffPolicy, finite
from tokscore.analytics.comparison.pairing import Skipped, kept_rows
from tokscore.analytics.comparison.reduction import Group, Reduction, reduce_batch
from tokscore.analytics.divergence.topk import MAX_LOGPROB
from tokscore.analytics.groups.grouping import Grouping, GroupKey, group_order, parse_group_by
from tokscore.dataset.choices import OnError, choose
from tokscore.dataset.errors import InputError
from tokscore.dataset.reading import Dataset
from tokscore.dataset.schema import DatasetKind
from tokscore.dataset.token_rows import conversation_name, token_batches


@dataclass(frozen=True, slots=True)
class MismatchRow:
    """Means per token of one group that has both logprobs; None without tokens.

    Attributes:
        group: What its tokens share.
        n_tokens: Tokens with both logprobs.
        n_unrecorded: Tokens without one of them.
        scored_logprob: Of the realised token.
        recorded_logprob: As the input said.
        log_ratio: Scored less recorded.
        off_policy: Importance ratios scored / recorded.
    """

    group: GroupKey
    n_tokens: int
    n_unrecorded: int
    scored_logprob: float | None
    recorded_logprob: float | None
    log_ratio: float | None
    off_policy: OffPolicy

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            "group": list(self.group) if isinstance(self.group, tuple) else self.group,
            "n_tokens": self.n_tokens,
            "n_unrecorded": self.n_unrecorded,
            "scored_logprob": self.scored_logprob,
            "recorded_logprob": self.recorded_logprob,
            "log_ratio": self.log_ratio,
            "off_policy": self.off_policy.to_dict(),
        }


@dataclass(frozen=True, slots=True)
class MismatchReport:
    """Recorded against scored logprobs of a dataset.

    Attributes:
        by: What the groups share.
        groups: One row per group, tokens of no message last.
        total: All tokens together.
        n_conversations: Conversations (or branches) compared.
        skipped: Those that were left out for what is wrong with them.
    """

    by: Grouping
    groups: tuple[MismatchRow, ...]
    total: MismatchRow
    n_conversations: int
    skipped: tuple[Skipped, ...]

    def rows(self) -> list[MismatchRow]:
        """The groups and the total."""
        return [*self.groups, self.total]

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            "by": self.by.value,
            "groups": [row.to_dict() for row in self.groups],
            "total": self.total.to_dict(),
            "n_conversations": self.n_conversations,
            "n_skipped": len(self.skipped),
            "skipped": [each._asdict() for each in self.skipped],
        }


def mismatch(
    scores: Path | str, *, by: str | Sequence[str] = "role", on_error: OnError | str = OnError.FAIL
) -> MismatchReport:
    """Compare the logprobs that the input carried with those that the model gave.

    Args:
        scores: A score dataset whose input carried logprobs.
        by: The columns that make the groups, as `groups.parse_group_by` takes it.
        on_error: Whether a conversation with a NaN or a logprob above 0 ends the run or is left out.

    Raises:
        UsageError: `by` is not allowed.
        InputError: No whole score dataset, none of its tokens has both logprobs, or one is NaN or above 0.
    """
    grouping, on_error = parse_group_by(by), choose(OnError, on_error, "on_error")
    dataset = Dataset(Path(scores), kind=DatasetKind.SCORES)
    reduction = Reduction(["log_ratio"], grouping)
    skipped: list[Skipped] = []
    columns = ["position", "logprob", "recorded_logprob", *grouping.token_columns]
    for places, starts, table in token_batches(dataset.places(), dataset.token_rows(columns), BATCH_TOKENS):
        rows = _rows_with_both(table)
        scored, recorded = (
            table[name].to_numpy()[rows].astype(np.float64) for name in ("logprob", "recorded_logprob")
        )
        conversations = np.searchsorted(starts, rows, side="right") - 1
        is_bad = ~(np.isfinite(recorded) & (recorded <= MAX_LOGPROB) & (scored <= MAX_LOGPROB))
        bad, first = np.unique(conversations[is_bad], return_index=True)
        for conversation, index in zip(bad.tolist(), np.flatnonzero(is_bad)[first].tolist(), strict=True):
            place = places[conversation]
            reason = (
                f"{dataset.root}: {conversation_name(*place.key)}, position "
                f"{rows[index] - starts[conversation]}: the recorded logprob is {recorded[index]:g}, the "
                f"scored one {scored[index]:g}; expected numbers of at most 0, and a finite recorded one."
            )
            if on_error is OnError.FAIL:
                raise InputError(f"{reason}\nLeave such conversations out with `on_error='skip'`.")
            skipped.append(Skipped(place.conversation_id, place.branch, reason))
        if len(bad):
            is_kept = ~np.isin(conversations, bad)
            scored, recorded = scored[is_kept], recorded[is_kept]
            kept = np.setdiff1d(np.arange(len(places)), bad)
            places = [places[conversation] for conversation in kept]
            table, starts = kept_rows(kept, starts, table)
            rows = _rows_with_both(table)
        values = off_policy.ratio_columns(scored - recorded)
        values |= {"scored_logprob": scored, "recorded_logprob": recorded}
        reduction.add(reduce_batch(values, rows, places, starts, table, grouping))
    whole = reduction.total()
    if skipped and len(skipped) == reduction.n_conversations + len(skipped):
        raise InputError(
            f"{dataset.root}: none of the {len(skipped)} conversations could be compared. "
            f"The first: {skipped[0].reason}"
        )
    if not whole.n_tokens:
        raise InputError(
            f"{dataset.root} has no token with a recorded and a scored logprob; expected a score dataset of "
            "recorded trajectories that carry logprobs."
        )
    return MismatchReport(
        by=grouping,
        groups=tuple(_row(key, reduction.group(key)) for key in sorted(reduction.keys(), key=group_order)),
        total=_row(None, whole),
        n_conversations=reduction.n_conversations,
        skipped=tuple(skipped),
    )


def _rows_with_both(table: pa.Table) -> NDArray[np.int64]:
    both = pc.and_(pc.is_valid(table["logprob"]), pc.is_valid(table["recorded_logprob"]))
    return np.flatnonzero(both.to_numpy())


def _row(key: GroupKey, group: Group) -> MismatchRow:
    def mean(name: str) -> float | None:
        return finite(group.sums[name] / group.n_tokens) if group.n_tokens else None

    return MismatchRow(
        group=key,
        n_tokens=group.n_tokens,
        n_unrecorded=group.n_rows - group.n_tokens,
        scored_logprob=mean("scored_logprob"),
        recorded_logprob=mean("recorded_logprob"),
        log_ratio=mean("log_ratio"),
        off_policy=off_policy.off_policy(group),
    )
