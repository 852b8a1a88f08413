"""Recorded logprobs against scored ones: how far an engine that sampled is from the model that scores."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from tokscore.analytics.comparison.compare import BATCH_TOKENS
from tokscore.analytics.comparison.confidence import (
    MAX_CONFIDENT_GROUPS,
    named_confidence,
    why_unconfident,
    why_unlimited,
)
from tokscore.analytics.comparison.noise import NoiseFloor, read_noise_floor
from tokscore.analytics.comparison.off_policy import OVERFLOWING
from tokscore.analytics.comparison.pairing import Skipped
from tokscore.analytics.comparison.reduction import Group, Reduction, reduce_batch
from tokscore.analytics.comparison.tables import TokenTable, write_groups
from tokscore.analytics.divergence.topk import MAX_LOGPROB
from tokscore.analytics.groups.grouping import Grouping, group_order, parse_group_by
from tokscore.analytics.groups.tables import group_table
from tokscore.analytics.recorded.confidence import KEPT, mismatch_confidence
from tokscore.analytics.recorded.pairs import DatasetPairs, FilePairs, Pairs
from tokscore.analytics.recorded.rows import MismatchRow, mismatch_columns, row_of
from tokscore.analytics.recorded.tables import token_table
from tokscore.analytics.statistics.multiplicity import replicates_for
from tokscore.dataset.choices import OnError, RecordedAgainst, choose
from tokscore.dataset.errors import InputError, none_could
from tokscore.dataset.files import PathName, location, output_location
from tokscore.dataset.token_rows import conversation_name
from tokscore.dataset.tokens import FailedConversation


@dataclass(frozen=True, slots=True)
class MismatchReport:
    """Recorded logprobs of tokens against others of the same tokens.

    Attributes:
        by: What the groups share.
        against: Whose the others are.
        groups: One row per group, tokens of no message last.
        total: All tokens together.
        n_conversations: Conversations (or branches) compared.
        skipped: Those that were left out for what is wrong with them.
        failures: Records of files that could not be read.
        noise_floor: What the engine differs from itself, if that was given.
    """

    by: Grouping
    against: RecordedAgainst
    groups: tuple[MismatchRow, ...]
    total: MismatchRow
    n_conversations: int
    skipped: tuple[Skipped, ...]
    failures: tuple[FailedConversation, ...]
    noise_floor: NoiseFloor | None

    @property
    def why_unconfident(self) -> str | None:
        """Why no group has confidence limits, though the total may; None where groups may have them."""
        return why_unconfident(self.by, len(self.groups))

    def rows(self) -> list[MismatchRow]:
        """The groups and the total."""
        return [*self.groups, self.total]

    def why_missing(self, row: MismatchRow, metric: str) -> str:
        """Why a number of a row is not there; empty where that is not known."""
        if not row.n_tokens:
            return "the group has no tokens with both logprobs"
        if metric.startswith("mismatch_kl.") and not row.mismatch_kl.n_tokens:
            return "no token with both logprobs is known to be sampled"
        if metric.startswith("confidence."):
            return why_unlimited(row.confidence, metric, self.why_unconfident, is_total=row is self.total)
        if metric in OVERFLOWING:
            return "ratios of the probabilities are beyond the range of float64"
        if metric.startswith("off_policy."):
            return self.why_unconfident or ""
        return "a token is ruled out: its logprob is -inf"

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            "by": self.by.value,
            "against": self.against.value,
            "groups": [row.to_dict() for row in self.groups],
            "total": self.total.to_dict(),
            "n_conversations": self.n_conversations,
            "n_skipped": len(self.skipped),
            "skipped": [each._asdict() for each in self.skipped],
            "n_failed": len(self.failures),
            "noise_floor": None if self.noise_floor is None else self.noise_floor._asdict(),
        }


def mismatch(
    recorded: PathName | Sequence[str],
    *,
    by: str | Sequence[str] = "role",
    on_error: OnError | str = OnError.FAIL,
    against: RecordedAgainst | str | None = None,
    noise_floor: PathName | None = None,
    out: PathName | None = None,
) -> MismatchReport:
    """Compare the logprobs that an input carried with those of a model, or of its trainer.

    Args:
        recorded: A dataset whose input carried logprobs, or files of recorded token ids.
        by: The columns that make the groups, as `groups.parse_group_by` takes it.
        on_error: Whether a conversation with a NaN or a logprob above 0 ends the run or is left out.
        against: `"scored"` for the logprobs of a score dataset, its default; `"trainer"` for those that the
            input carried beside the recorded ones, as prime-rl and NeMo RL write them, the default of token
            datasets and files.
        noise_floor: JSON of `tokscore selfcheck`.
        out: Directory for tokens.parquet and groups.parquet, new or empty.

    Raises:
        UsageError: `by`, `against` or `out` is not allowed.
        InputError: No whole dataset or no files, none of the tokens has both logprobs, or one is NaN or above
            0.
    """
    grouping, on_error = parse_group_by(by), choose(OnError, on_error, "on_error")
    asked = None if against is None else choose(RecordedAgainst, against, "against")
    floor = None if noise_floor is None else read_noise_floor(Path(noise_floor))
    source = open_pairs(recorded, asked)
    reduction = Reduction(KEPT, grouping)
    skipped: list[Skipped] = []
    columns = ["is_sampled", *grouping.token_columns, *(["token_id"] if out is not None else [])]
    with ExitStack() as stack:
        tokens = stack.enter_context(TokenTable(None if out is None else output_location(out)))
        for pairs in source.batches(columns, BATCH_TOKENS):
            faults = _faults(pairs, source.name)
            if faults and on_error is OnError.FAIL:
                reason = next(iter(faults.values()))
                raise InputError(f"{reason}\nLeave such conversations out with `on_error='skip'`.")
            skipped += [Skipped(*pairs.places[index].key, reason) for index, reason in faults.items()]
            kept = pairs.without(list(faults)) if faults else pairs
            is_sampled = pc.fill_null(kept.table["is_sampled"], False).to_numpy()[kept.rows]
            values = mismatch_columns(kept.recorded, kept.other, is_sampled)
            reduction.add(reduce_batch(values, kept.rows, kept.places, kept.starts, kept.table, grouping))
            if out is not None:
                tokens.write(token_table(kept, grouping, source.against))
        failures = source.recorded.failures if isinstance(source, FilePairs) else []
        if failures and on_error is OnError.FAIL:
            raise InputError(
                f"{failures[0].skipped().error()}\nLeave such records out with `on_error='skip'`."
            )
        whole = reduction.total()
        _check_some(source, whole, skipped, reduction.n_conversations)
        report = _report(reduction, whole, grouping, source.against)
        report = replace(report, skipped=tuple(skipped), noise_floor=floor)
        if isinstance(source, FilePairs):
            report = replace(
                report,
                skipped=(*report.skipped, *source.skipped),
                failures=tuple(source.recorded.failures),
            )
        if out is not None:
            write_groups(
                output_location(out),
                group_table(grouping, [(row.group, row.flat()) for row in report.groups]),
            )
            tokens.finish()
    return report


def open_pairs(
    recorded: PathName | Sequence[str], against: RecordedAgainst | None = None
) -> DatasetPairs | FilePairs:
    """A dataset, or files, whose tokens carry logprobs.

    Raises:
        UsageError: Files have no scores.
        InputError: There is no whole dataset, or a file is missing, empty or damaged.
    """
    if isinstance(recorded, Sequence) and not isinstance(recorded, str):
        return FilePairs(recorded, against)
    path = location(recorded)
    return FilePairs([str(recorded)], against) if path.is_file() else DatasetPairs(path, against)


def _faults(pairs: Pairs, name: str) -> dict[int, str]:
    """What is wrong with conversations, by their index."""
    recorded, other = pairs.recorded, pairs.other
    is_bad = ~(np.isfinite(recorded) & (recorded <= MAX_LOGPROB) & (other <= MAX_LOGPROB))
    found: dict[int, str] = {}
    for index in np.flatnonzero(is_bad).tolist():
        row = int(pairs.rows[index])
        conversation = int(np.searchsorted(pairs.starts, row, side="right")) - 1
        found.setdefault(
            conversation,
            f"{name}: {conversation_name(*pairs.places[conversation].key)}, position "
            f"{row - pairs.starts[conversation]}: the recorded logprob is {recorded[index]:g}, the "
            f"other one {other[index]:g}; expected numbers of at most 0, and a finite recorded one.",
        )
    return found


def _check_some(
    source: DatasetPairs | FilePairs, whole: Group, skipped: Sequence[Skipped], n_compared: int
) -> None:
    if skipped and not n_compared:
        reason = none_could(len(skipped), "conversation", "be compared", skipped[0].reason)
        raise InputError(f"{source.name}: {reason}")
    if not whole.n_tokens and source.against is RecordedAgainst.SCORED:
        raise InputError(
            f"{source.name} has no token with a recorded and a scored logprob; expected a score dataset of "
            "recorded trajectories that carry logprobs."
        )
    if not whole.n_tokens:
        raise InputError(
            f"{source.name} has no token with a recorded logprob and one of a trainer; expected records that "
            "carry both, as prime-rl's inference_logprobs and trainer_logprobs. Score them with `logprobs` "
            "to hold recorded logprobs against a model."
        )


def _report(
    reduction: Reduction, whole: Group, grouping: Grouping, against: RecordedAgainst
) -> MismatchReport:
    """With confidence limits; nothing is known of what was left out."""
    keys = sorted(reduction.keys(), key=group_order)
    groups = [reduction.group(key) for key in keys]
    n_replicates, is_few = replicates_for(len(groups)), len(groups) <= MAX_CONFIDENT_GROUPS
    limits, limits_of_all = named_confidence(
        [mismatch_confidence(group.clusters, against, n_replicates) if is_few else [] for group in groups],
        mismatch_confidence(whole.clusters, against),
    )
    rows = [
        replace(row_of(key, group, against), confidence=each)
        for key, group, each in zip(keys, groups, limits, strict=True)
    ]
    total = replace(row_of(None, whole, against), confidence=limits_of_all)
    return MismatchReport(grouping, against, tuple(rows), total, reduction.n_conversations, (), (), None)
