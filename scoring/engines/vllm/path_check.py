"""The check of a path at start: all that it returns for a few sequences, against vLLM's plain path."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tokscore.scoring.engines.contract import TokenSequence

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokscore.scoring.engines.contract import SequenceScores

    Floats = NDArray[np.float64]

# What two paths may differ by, in nats at temperature 1: rounding in float32, and of logits that one of them
# has in bf16, which knows those from 64 to 128 to 1/4. A model with logits near 30 came to 0.13.
LIMIT = 1e-3
LIMIT_16_BIT = 1.0
# The plain path is asked for so many of the most likely ids at least.
PLAIN_TOP_K = 20
SHORT_TOKENS = 9
# What float32 sums over a vocabulary may be off by: probabilities, and nats at temperature 1.
MASS_ROUNDING = 1e-5
ENTROPY_ROUNDING = 1e-3


class PathError(Exception):
    """A way to take vLLM's logprobs does not work here."""


class PathCheck(NamedTuple):
    """Numbers by which two paths are compared.

    Attributes:
        vocab_size: Width of the logits.
        temperature: Of the path; the plain path knows only 1.
        limit: What logprobs may differ by at temperature 1, in nats.
    """

    vocab_size: int
    temperature: float
    limit: float

    def sequences(self, longest: int, batch_tokens: int) -> list[TokenSequence]:
        """A short one, the same with some rows wanted, and long ones until a batch ends inside one.

        Args:
            longest: Most tokens of a sequence.
            batch_tokens: Tokens of one forward pass.
        """
        generator = np.random.default_rng(0)
        n_short, n_long = min(SHORT_TOKENS, longest), max(1, min(longest, batch_tokens + 3))
        lengths = [n_short, *[n_long] * -(-(batch_tokens + 3) // n_long)]
        ids = [generator.integers(0, self.vocab_size, n).astype(np.int32) for n in lengths]
        some = np.arange(n_short - 1) % 3 != 1
        return [TokenSequence(0, ids[0], some), *(TokenSequence(key, one) for key, one in enumerate(ids, 1))]

    def difference(self, found: SequenceScores, plain: SequenceScores) -> float:
        """The largest difference between logprobs of two paths, in nats at the path's temperature.

        At a temperature T the plain path is no reference for a logprob, but for the difference of two: it
        is 1/T of the plain one. What is left, one sum for each row, must lie where the plain list and the
        mass beside it allow.

        Args:
            found: Of the path, of the right shapes and sound in themselves.
            plain: Of the plain path for the same tokens, at least as many ids a row.

        Raises:
            PathError: Logprobs, lists or ranks differ by more than rounding explains, or the entropy is
                not one that goes with the list.
        """
        sharpness = 1 / self.temperature
        limit = self.limit * max(1.0, sharpness)
        logprobs, top_logprobs = _wide(found.logprobs), _wide(found.top_logprobs)
        plain_logprobs, plain_top = _wide(plain.logprobs) * sharpness, _wide(plain.top_logprobs) * sharpness
        if self.temperature != 1:
            # By what the list begins with, which is finite, or by the token alone.
            begins = (
                (top_logprobs[:, 0], plain_top[:, 0]) if found.top_ids.size else (logprobs, plain_logprobs)
            )
            shift = _differences(*begins)
            self._check_totals(-shift, _wide(plain.top_logprobs), np.isfinite(begins[0]), limit)
            plain_logprobs, plain_top = plain_logprobs + shift, plain_top + shift[:, None]
        found_keys, plain_keys = (_keys(scores.top_ids, self.vocab_size) for scores in (found, plain))
        at, is_known = _places(found_keys, plain_keys)
        differences = np.concatenate(
            [
                _differences(logprobs, plain_logprobs),
                _differences(top_logprobs[is_known], plain_top.reshape(-1)[at[is_known]]),
            ]
        )
        difference = float(np.abs(differences).max(initial=0))
        if not difference <= limit:
            raise PathError(f"its logprobs differ from vLLM's plain ones by {difference:.3g} nats")
        # An id that only one list has is about as likely as the last of the other.
        top_k = top_logprobs.shape[1]
        is_listed = _places(plain_keys[:, :top_k], found_keys)[1]
        is_too_likely = ~is_known & (top_logprobs > plain_top[:, -1:] + limit)
        is_left_out = ~is_listed & (plain_top[:, :top_k] > top_logprobs[:, -1:] + limit)
        if is_too_likely.any() or is_left_out.any():
            raise PathError("its most likely ids are others than vLLM's plain ones")
        self._check_ranks(found.ranks, plain)
        if found.entropy is not None:
            self._check_entropy(_wide(found.entropy), top_logprobs)
        return difference

    def _check_totals(
        self, log_totals: Floats, plain_top: Floats, is_finite: NDArray[np.bool_], limit: float
    ) -> None:
        """Where `log(sum(p ** (1 / T)))` can lie for a p of which the most likely ids are known.

        The mass beside the list is on ids that are no likelier than its last: on all of them alike, or on as
        few as can hold it. A sum of a convex or concave function is largest at one of these, smallest at
        the other.
        """
        power = 1 / self.temperature
        # Everything in units of the most likely id, which a small temperature leaves alone.
        peak = plain_top[:, 0]
        head = np.exp((plain_top - peak[:, None]) * power).sum(1)
        last = np.exp(plain_top[:, -1])
        power_of_last = np.exp((plain_top[:, -1] - peak) * power)
        n_rest = self.vocab_size - plain_top.shape[1]
        rest = 1 - np.exp(plain_top).sum(1)
        ends = []
        for mass in (np.maximum(rest - MASS_ROUNDING, 0), np.maximum(rest, 0) + MASS_ROUNDING):
            even = n_rest * (mass / max(n_rest, 1) / np.exp(peak)) ** power
            few = np.divide(mass, last, out=np.zeros_like(mass), where=last > 0) * power_of_last
            ends += [even, np.minimum(few, n_rest * power_of_last)]
        low, high = (np.log(head + end) + peak * power for end in (np.min(ends, 0), np.max(ends, 0)))
        is_wrong = (log_totals < low - limit) | (log_totals > high + limit)
        if (is_wrong & is_finite).any():
            raise PathError(f"its logprobs are none of vLLM's plain ones at temperature {self.temperature:g}")

    def _check_ranks(self, ranks: NDArray[np.int32] | None, plain: SequenceScores) -> None:
        """Compare ranks, which no temperature changes, with those of the plain path at temperature 1."""
        if ranks is None or plain.ranks is None:
            raise PathError("it gives no ranks")
        logprobs, top = _wide(plain.logprobs)[:, None], _wide(plain.top_logprobs)
        lowest = 1 + (top > logprobs + 2 * self.limit).sum(1)
        highest = np.maximum((top >= logprobs - 2 * self.limit).sum(1), 1)
        # Beyond the list, there are at most about as many ids to a nat as there are ids.
        n_near = 2 + int(4 * self.limit * self.vocab_size)
        is_beyond = (highest == top.shape[1]) & (top.shape[1] < self.vocab_size)
        highest = np.where(is_beyond, np.maximum(plain.ranks, highest) + n_near, highest)
        lowest = np.where(is_beyond, np.maximum(lowest, plain.ranks - n_near), lowest)
        if (ranks < lowest).any() or (ranks > highest).any():
            raise PathError("its ranks differ from vLLM's plain ones by more than rounding explains")

    def _check_entropy(self, entropy: Floats, top_logprobs: Floats) -> None:
        """Where an entropy can lie for a list: the mass beside it is on one id up to all of them."""
        n_rest = self.vocab_size - top_logprobs.shape[1]
        mass = np.exp(top_logprobs)
        head = -(mass * np.where(mass > 0, top_logprobs, 0)).sum(1)
        rest = 1 - mass.sum(1)
        fewest, most = np.maximum(rest - MASS_ROUNDING, 0), np.maximum(rest, 0) + MASS_ROUNDING
        last = top_logprobs[:, -1] if top_logprobs.shape[1] else np.zeros_like(entropy)
        low = head + np.where(fewest > 0, fewest * -np.maximum(last, np.finfo(np.float32).min), 0)
        high = head + most * np.log(max(n_rest, 1) / np.minimum(most, 1))
        slack = ENTROPY_ROUNDING * max(1.0, 1 / self.temperature)
        is_wrong = ~(
            (entropy >= low - slack) & (entropy <= np.minimum(high, np.log(self.vocab_size)) + slack)
        )
        if is_wrong.any():
            raise PathError(f"an entropy of {entropy[is_wrong][0]:.4g} nats does not go with its list")


def _wide(values: NDArray[np.float32]) -> Floats:
    return values.astype(np.float64)


def _keys(ids: NDArray[np.int32], vocab_size: int) -> NDArray[np.int64]:
    """Row and id as one number, [rows, k]."""
    return np.arange(len(ids), dtype=np.int64)[:, None] * vocab_size + ids


def _places(keys: NDArray[np.int64], among: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Where keys are in the flattened `among`, and whether they are; both of the shape of `keys`."""
    order = np.argsort(among, axis=None)
    ordered = among.reshape(-1)[order]
    if not len(ordered):
        return np.zeros(keys.shape, np.int64), np.zeros(keys.shape, np.bool_)
    at = np.minimum(np.searchsorted(ordered, keys), len(ordered) - 1)
    return order[at], ordered[at] == keys


def _differences(one: Floats, other: Floats) -> Floats:
    """One minus the other; 0 where both are -inf."""
    return np.subtract(one, other, out=np.zeros_like(one), where=one != other)
