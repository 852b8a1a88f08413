"""The check of a loaded model: what follows a token, or stands beside it, must not change its score."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from tokscore.dataset.errors import InputError
from tokscore.scoring.engines.contract import SequenceScores, TokenSequence

_EXPECTED = "Expected a model that reads from left to right; encoders such as BERT do not."
_PACKED = (
    "Its kernels ({}) take other tokens into account, as those of bitsandbytes with 8 bits do. "
    "Score a copy whose weights are not quantized."
)

Score = Callable[[Iterable[TokenSequence]], Iterator[tuple[int, SequenceScores]]]

PROBE_TOKENS = 16
# A model that looks ahead moves by nats; what rounds differently in other company moves by this at most.
MAX_MOVE, MEAN_MOVE = {"float32": 1e-3}, {"float32": 1e-3}
MAX_MOVE_16_BIT, MEAN_MOVE_16_BIT = 1.0, 0.1


class Probe(NamedTuple):
    """One sequence in three forms, all of which begin alike.

    Attributes:
        plain: It.
        other_end: With another last token.
        longer: Followed by as many tokens again.
    """

    plain: TokenSequence
    other_end: TokenSequence
    longer: TokenSequence


def make_probe(vocab_size: int, longest: int) -> Probe | None:
    """The sequences; None where the engine takes too few tokens to tell.

    Args:
        vocab_size: Width of the logits.
        longest: Most tokens of a sequence.
    """
    n = min(PROBE_TOKENS, longest // 2)
    if n < 3 or vocab_size < 2:
        return None
    ids = np.random.default_rng(0).integers(0, vocab_size, 2 * n).astype(np.int32)
    other = ids[:n].copy()
    other[-1] = (other[-1] + vocab_size // 2) % vocab_size
    return Probe(TokenSequence(0, ids[:n]), TokenSequence(1, other), TokenSequence(2, ids))


def check_causality(
    score: Score, vocab_size: int, longest: int, *, name: str, dtype: str, quantization: str | None = None
) -> None:
    """Refuse a model whose earlier rows move with a later token, or with the company of a sequence.

    Args:
        score: Of the engine.
        vocab_size: Width of the logits.
        longest: Most tokens of a sequence.
        name: Of the model, for messages.
        dtype: It computes in.
        quantization: The method of a quantized checkpoint, where it has one.

    Raises:
        InputError: With how far they move.
        EngineError: The engine failed.
    """
    probe = make_probe(vocab_size, longest)
    if probe is None:
        return
    alone = dict(score([probe.plain]))[0]
    together = dict(score(probe))
    # The last row is about the last token, which differs.
    n = alone.logprobs.size - 1
    max_move = MAX_MOVE.get(dtype, MAX_MOVE_16_BIT)
    mean_move = MEAN_MOVE.get(dtype, MEAN_MOVE_16_BIT)
    for what, one, other in (
        ("with another last token", together[0], together[1]),
        ("when more tokens follow", together[0], together[2]),
        ("beside longer sequences", alone, together[0]),
    ):
        before, after = one.logprobs[:n].astype(np.float64), other.logprobs[:n].astype(np.float64)
        # NaN is the business of the checks of rows; -inf stays where it is.
        moves = np.abs(np.subtract(before, after, out=np.zeros(n), where=before != after))
        if moves.max(initial=0) > max_move or moves.mean() > mean_move:
            raise InputError(
                f"{name} is no causal language model as it is run here: the logprobs of earlier tokens move "
                f"by up to {moves.max():.3g} nats {what}.\n"
                + (_EXPECTED if quantization is None else _PACKED.format(quantization))
            )
