"""The numbers of `diff --recorded` for one group of tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokscore.analytics.comparison.confidence import NamedConfidence
from tokscore.analytics.comparison.diff_rows import flat_numbers
from tokscore.analytics.comparison.off_policy import OffPolicy, finite, off_policy, ratio_columns
from tokscore.analytics.comparison.reduction import Group
from tokscore.analytics.divergence.topk import FloatArray
from tokscore.analytics.groups.grouping import GroupKey
from tokscore.dataset.choices import RecordedAgainst

N_SAMPLED = "n_sampled"
K1, K3 = "k1", "k3"


def mismatch_columns(
    recorded: FloatArray, other: FloatArray, is_sampled: NDArray[np.bool_]
) -> dict[str, FloatArray]:
    """Values by name that the rows are sums of, each of shape [tokens].

    `k1` and `k3` are the estimators of a KL from samples of its first argument: the log-ratio
    log p_recorded - log p_other, and r - 1 - log r with r = p_other / p_recorded. Both are 0 where a token is
    not known to be sampled.

    Args:
        recorded: Logprobs as the input said, finite.
        other: Those that they are held against; -inf is allowed.
        is_sampled: Whether a token is known to be generated.

    Source:
        Schulman (2020), Approximating KL Divergence, http://joschu.net/blog/kl-approx.html.
    """
    columns = ratio_columns(other - recorded)
    with np.errstate(over="ignore"):
        # expm1, since r - 1 of close logprobs loses its digits.
        k3 = np.expm1(columns["log_ratio"]) - columns["log_ratio"]
    return columns | {
        "recorded_logprob": recorded,
        "other_logprob": other,
        N_SAMPLED: is_sampled.astype(np.float64),
        K1: np.where(is_sampled, -columns["log_ratio"], 0.0),
        K3: np.where(is_sampled, k3, 0.0),
    }


class MismatchKl(NamedTuple):
    """Estimates of KL(recorded || other) per token, from the tokens that the recording policy sampled.

    Both are unbiased where the recorded logprobs are those of the distribution that was sampled from. k1 may
    be below 0 by chance; k3 is never, and varies less where the policies are close. None without tokens, and
    where the other rules a token out.

    Attributes:
        direction: Which KL it is.
        n_tokens: Tokens that it is of: those with both logprobs that are known to be sampled.
        k1: Mean of log p_recorded - log p_other.
        k3: Mean of r - 1 - log r with r = p_other / p_recorded.
    """

    direction: str
    n_tokens: int
    k1: float | None
    k3: float | None


@dataclass(frozen=True, slots=True)
class MismatchRow:
    """Means per token of one group that has both logprobs; None without tokens.

    Attributes:
        group: What its tokens share.
        against: Whose logprobs the recorded ones are held against.
        n_tokens: Tokens with both logprobs.
        n_unrecorded: Tokens without one of them.
        recorded_logprob: As the input said.
        other_logprob: Of the model that scored, or of the trainer; `scored_logprob` or `trainer_logprob` in
            JSON.
        log_ratio: The other less the recorded one.
        mismatch_kl: Estimates of a KL.
        off_policy: Importance ratios other / recorded.
        confidence: Of the means, shares, estimates and the effective sample size; empty without tokens, and
            where groups are narrow or many.
    """

    group: GroupKey
    against: RecordedAgainst
    n_tokens: int
    n_unrecorded: int
    recorded_logprob: float | None
    other_logprob: float | None
    log_ratio: float | None
    mismatch_kl: MismatchKl
    off_policy: OffPolicy
    confidence: tuple[NamedConfidence, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            "group": list(self.group) if isinstance(self.group, tuple) else self.group,
            "n_tokens": self.n_tokens,
            "n_unrecorded": self.n_unrecorded,
            "recorded_logprob": self.recorded_logprob,
            f"{self.against}_logprob": self.other_logprob,
            "log_ratio": self.log_ratio,
            "mismatch_kl": self.mismatch_kl._asdict(),
            "off_policy": self.off_policy.to_dict(),
            "confidence": {each.name: each.to_dict() for each in self.confidence},
        }

    def flat(self) -> dict[str, float | int | None]:
        """All numbers and booleans by dotted name, such as `mismatch_kl.k3`."""
        return flat_numbers({key: value for key, value in self.to_dict().items() if key != "group"})

    def is_infinite(self, metric: str) -> bool:
        """Whether a number without a value is infinite: both estimates are where a token is ruled out."""
        estimates = ("mismatch_kl.k1", "mismatch_kl.k3")
        return metric in estimates and self.mismatch_kl.n_tokens > 0 and self.flat()[metric] is None


def row_of(key: GroupKey, group: Group, against: RecordedAgainst) -> MismatchRow:
    """The row of one group, without confidence limits; `group` holds the sums of `mismatch_columns`."""
    sums: Mapping[str, float] = group.sums

    def mean(name: str, n: float = group.n_tokens) -> float | None:
        return finite(sums[name] / n) if n else None

    n_sampled = int(sums[N_SAMPLED])
    estimate = MismatchKl(f"kl_recorded_{against}", n_sampled, mean(K1, n_sampled), mean(K3, n_sampled))
    return MismatchRow(
        group=key,
        against=against,
        n_tokens=group.n_tokens,
        n_unrecorded=group.n_rows - group.n_tokens,
        recorded_logprob=mean("recorded_logprob"),
        other_logprob=mean("other_logprob"),
        log_ratio=mean("log_ratio"),
        mismatch_kl=estimate,
        off_policy=off_policy(group),
    )
