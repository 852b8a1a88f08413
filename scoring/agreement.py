"""How far two scorings of the same tokens agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tokscore.dataset.errors import EngineError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokscore.scoring.engines.contract import SequenceScores

# A ratio of two probabilities inside is often taken for none.
RATIO_LOW, RATIO_HIGH = 0.9, 1.1


class Agreement(NamedTuple):
    """Differences of the logprobs of the same tokens, in nats.

    A mean hides rare large differences, so the upper end is told as well.

    Attributes:
        n_tokens: Compared.
        mean: Of |delta|; inf where only one of two logprobs is -inf.
        p95: The smallest |delta| that at least 95 of 100 do not exceed.
        p99: The same for 99.
        max: The largest |delta|.
        share_outside: Share of tokens with exp(delta) outside [0.9, 1.1].
        top1_agreement: Share with the same most likely id; None without top-k.
        rank_agreement: Share with the same rank; None where an engine gives none.
        top_logprobs_max: The largest difference between logprobs at the same place of the top-k; None
            without top-k.
    """

    n_tokens: int
    mean: float
    p95: float
    p99: float
    max: float
    share_outside: float
    top1_agreement: float | None
    rank_agreement: float | None
    top_logprobs_max: float | None


def agreement(one: Sequence[SequenceScores], other: Sequence[SequenceScores]) -> Agreement:
    """Agreement over all tokens of the same sequences in the same order.

    Raises:
        EngineError: Rows or alternatives of the two differ in number, or there are none.
    """
    shapes = [[scores.top_logprobs.shape for scores in side] for side in (one, other)]
    if shapes[0] != shapes[1]:
        raise EngineError("two scorings of the same sequences have different numbers of rows or top-k.")
    delta = _differences(_joined(one, "logprobs"), _joined(other, "logprobs"))
    if not len(delta):
        raise EngineError("there is no token to compare; expected sequences of 2 tokens or more.")
    size = np.abs(delta)
    p95, p99 = np.percentile(size, [95, 99], method="inverted_cdf")
    ratio = np.exp(delta)
    has_top = bool(one[0].top_ids.shape[1])
    has_ranks = all(scores.ranks is not None for scores in (*one, *other))
    top_one, top_other = _joined(one, "top_ids"), _joined(other, "top_ids")
    top_logprobs = _differences(_joined(one, "top_logprobs"), _joined(other, "top_logprobs"))
    return Agreement(
        n_tokens=len(delta),
        mean=float(size.mean()),
        p95=float(p95),
        p99=float(p99),
        max=float(size.max()),
        share_outside=float(((ratio < RATIO_LOW) | (ratio > RATIO_HIGH)).mean()),
        top1_agreement=float((top_one[:, 0] == top_other[:, 0]).mean()) if has_top else None,
        rank_agreement=float((_joined(one, "ranks") == _joined(other, "ranks")).mean())
        if has_ranks
        else None,
        top_logprobs_max=float(np.abs(top_logprobs).max()) if has_top else None,
    )


def is_bitwise_equal(one: Sequence[SequenceScores], other: Sequence[SequenceScores]) -> bool:
    """Whether every array of the two has the same bits."""
    return all(
        _bits(getattr(a, name)) == _bits(getattr(b, name))
        for a, b in zip(one, other, strict=True)
        for name in ("logprobs", "ranks", "top_ids", "top_logprobs", "entropy")
    )


def _joined(side: Sequence[SequenceScores], column: str) -> NDArray[np.float64]:
    return np.concatenate([getattr(scores, column) for scores in side]).astype(np.float64)


def _differences(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    """One minus the other; 0 where both are -inf."""
    return np.subtract(one, other, out=np.zeros_like(one), where=one != other)


def _bits(column: NDArray[np.generic] | None) -> bytes | None:
    return None if column is None else column.tobytes()
