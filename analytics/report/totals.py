"""Sums over the tokens of a report, by everything it groups them by, in one pass."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from tokscore.analytics.divergence.topk import PADDING, FloatArray
from tokscore.analytics.report.grouping import Grouping, groups_of
from tokscore.analytics.report.metrics import delta
from tokscore.analytics.report.scored import ModelScores, ScoredConversation

# Log-ratios and logprobs are counted in bins of this width, the outer ones open.
BIN_NATS = 0.25
N_BINS = 80
_SAMPLED_TOKENS = 100_000


def token_values(conversation: ScoredConversation) -> Mapping[str, FloatArray]:
    """What is summed for every token, shape [tokens] each; a token without the value adds 0."""
    teacher, student, divergences = conversation.teacher, conversation.student, conversation.divergences
    if student is None or divergences is None:
        is_ranked, has_entropy = ~np.isnan(teacher.ranks), ~np.isnan(teacher.entropies)
        return {
            "n_tokens": np.ones(len(conversation)),
            "n_counted": (~np.isnan(teacher.logprobs)).astype(np.float64),
            "logprob": np.nan_to_num(teacher.logprobs, nan=0.0, neginf=-np.inf),
            "n_ranked": is_ranked.astype(np.float64),
            "n_rank1": (is_ranked & (teacher.ranks == 1)).astype(np.float64),
            "n_entropy": has_entropy.astype(np.float64),
            "entropy": np.where(has_entropy, teacher.entropies, 0.0),
        }
    gap = delta(teacher.logprobs, student.logprobs)
    is_compared = ~np.isnan(divergences.gjs.lower)

    def counted(values: FloatArray) -> FloatArray:
        return np.where(is_compared, values, 0.0)

    agreement = _top1_agreement(teacher, student)
    values = {
        "n_tokens": np.ones(len(conversation)),
        "n_counted": is_compared.astype(np.float64),
        "logprob": counted(teacher.logprobs),
        "student_logprob": counted(student.logprobs),
        "delta": counted(gap),
        "unresolved": counted(divergences.gjs.unresolved),
        "n_top1": counted((agreement >= 0).astype(np.float64)),
        "n_agreeing": counted((agreement == 1).astype(np.float64)),
    }
    for name, bounds in divergences._asdict().items():
        is_unbounded = np.isinf(bounds.upper)
        values[f"{name}_lower"] = counted(bounds.lower)
        values[f"{name}_upper"] = counted(np.where(is_unbounded, 0.0, bounds.upper))
        values[f"{name}_n_unbounded"] = counted(is_unbounded.astype(np.float64))
    return values


def _top1_agreement(teacher: ModelScores, student: ModelScores) -> FloatArray:
    """1 where both find the same id most likely, 0 where not, -1 where a list is empty."""
    if not teacher.top_ids.shape[1] or not student.top_ids.shape[1]:
        return np.full(len(teacher.logprobs), -1.0)
    mine, theirs = teacher.top_ids[:, 0], student.top_ids[:, 0]
    return np.where((mine == PADDING) | (theirs == PADDING), -1.0, mine == theirs)


class Totals:
    """Sums of every group of every grouping, and of all tokens; floats are added in plan order.

    Attributes:
        n_conversations: Added so far.
        histogram: Tokens by log-ratio (two models) or logprob (one), int64, shape [N_BINS].
    """

    def __init__(self) -> None:
        self.n_conversations = 0
        self.histogram = np.zeros(N_BINS, np.int64)
        self._names: tuple[str, ...] = ()
        self._all = np.zeros(0)
        self._groups: dict[Grouping, dict[tuple[float, str], FloatArray]] = {by: {} for by in Grouping}

    def add(self, conversation: ScoredConversation) -> None:
        """Add one conversation."""
        values = token_values(conversation)
        if not self._names:
            self._names = tuple(values)
            self._all = np.zeros(len(values))
        matrix = np.stack([*values.values()])
        for by, rows in self._groups.items():
            codes, labels = groups_of(conversation, by)
            for code in np.flatnonzero(np.bincount(codes)).tolist():
                mine = matrix[:, codes == code].sum(axis=1)
                rows[labels[code]] = rows.get(labels[code], 0.0) + mine
        self._all += matrix.sum(axis=1)
        self.n_conversations += 1
        self._count(conversation)

    def _count(self, conversation: ScoredConversation) -> None:
        student = conversation.student
        mine = conversation.teacher.logprobs
        values = mine if student is None else delta(mine, student.logprobs)
        first = -N_BINS * BIN_NATS if student is None else -N_BINS * BIN_NATS / 2
        bins = np.floor((values[~np.isnan(values)] - first) / BIN_NATS)
        self.histogram += np.bincount(np.clip(bins, 0, N_BINS - 1).astype(np.int64), minlength=N_BINS)

    def total(self) -> dict[str, float]:
        """Sums over all tokens; 0 for all names where there is none."""
        return defaultdict(float, self.named(self._all))

    def named(self, sums: FloatArray) -> dict[str, float]:
        """Sums by name."""
        return dict(zip(self._names, sums.tolist(), strict=True))

    def rows(self, by: Grouping) -> list[tuple[str, dict[str, float]]]:
        """Label and sums of each group, by number or alphabet."""
        return [(label, self.named(sums)) for (_, label), sums in sorted(self._groups[by].items())]


class TokenSample:
    """Values of at most 100,000 tokens drawn evenly from a stream, the same in every run."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(0)
        self._keys, self._values = np.zeros(0), np.zeros(0)

    def add(self, values: FloatArray) -> None:
        """Offer values; NaN is left out."""
        known = values[~np.isnan(values)]
        self._keys = np.concatenate([self._keys, self._random.random(len(known))])
        self._values = np.concatenate([self._values, known])
        if len(self._keys) > 2 * _SAMPLED_TOKENS:
            self._shrink()

    def values(self) -> FloatArray:
        """What was drawn."""
        if len(self._keys) > _SAMPLED_TOKENS:
            self._shrink()
        return self._values

    def _shrink(self) -> None:
        kept = np.argpartition(self._keys, _SAMPLED_TOKENS)[:_SAMPLED_TOKENS]
        self._keys, self._values = self._keys[kept], self._values[kept]
