"""What `diff` adds up: one column per measure, one value per compared token."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tokscore.analytics.comparison import off_policy
from tokscore.analytics.comparison.compare import ComparedBatch
from tokscore.analytics.divergence.topk import FloatArray

# Measures that are intervals, in the order of the limits' columns.
INTERVALS = (
    "kl_teacher_student",
    "kl_student_teacher",
    "total_variation",
    "entropy_teacher",
    "entropy_student",
)
# What every interval is a limit of, and its unit; of any alpha by the name in front of it.
MEANINGS = {
    "kl_teacher_student": ("KL(teacher || student)", "nats"),
    "kl_student_teacher": ("KL(student || teacher)", "nats"),
    "total_variation": ("Total variation distance", "probability"),
    "entropy_teacher": ("Entropy of the teacher's distribution", "nats"),
    "entropy_student": ("Entropy of the student's distribution", "nats"),
    "gjs": ("Generalised Jensen-Shannon divergence with this weight of the teacher", "nats"),
    "skew_kl": ("KL(teacher || mixture with this weight of the teacher)", "nats"),
}
_COUNTS = (
    "teacher_logprob",
    "student_logprob",
    "delta_p",
    "unresolved_teacher",
    "unresolved_student",
    "teacher_rank",
    "student_rank",
    "n_teacher_rank1",
    "n_student_rank1",
    "n_teacher_ranked",
    "n_student_ranked",
    "n_agreeing",
    "n_top1",
    "n_beyond_vocabulary",
    "n_unbounded_kl_teacher_student",
    "n_unbounded_kl_student_teacher",
)


def interval_names(alphas: Sequence[float]) -> list[str]:
    """Names of all intervals, such as `gjs_0.5`, in the order of the limits' columns."""
    mixtures = [f"{measure}_{alpha:g}" for alpha in alphas for measure in ("gjs", "skew_kl")]
    return [*INTERVALS, *mixtures]


def ranges(alphas: Sequence[float]) -> dict[str, tuple[float, float]]:
    """The least and the largest value that each interval of a divergence may have, by name.

    A mixture is at least alpha times the teacher, so that KL(teacher || mixture) is at most log(1 / alpha),
    and a GJS is at most the entropy of alpha (Lin, 1991). Both are reached where the models share no id.
    """
    kl = (0.0, math.inf)
    found = {"kl_teacher_student": kl, "kl_student_teacher": kl, "total_variation": (0.0, 1.0)}
    for alpha in alphas:
        entropy = -alpha * math.log(alpha) - (1 - alpha) * math.log1p(-alpha)
        found |= {f"gjs_{alpha:g}": (0.0, entropy), f"skew_kl_{alpha:g}": (0.0, -math.log(alpha))}
    return found


def meaning(name: str) -> tuple[str, str]:
    """What an interval of `interval_names` is a limit of, and its unit."""
    return MEANINGS[name] if name in MEANINGS else MEANINGS[name.rpartition("_")[0]]


def column_names(alphas: Sequence[float]) -> list[str]:
    """Names of the columns of `token_values`; those of `off_policy.COLUMNS` come first."""
    limits = [f"{name}.{end}" for name in interval_names(alphas) for end in ("lower", "upper")]
    return [*off_policy.COLUMNS, *_COUNTS, *limits]


def token_values(batch: ComparedBatch) -> FloatArray:
    """The columns in the order of `column_names`, shape [columns, tokens].

    Upper limits that are not there count as 0, and are counted.
    """
    columns = batch.limits.columns
    ranks = [np.nan_to_num(each) for each in (batch.teacher_ranks, batch.student_ranks)]
    has_top = (batch.teacher_top >= 0) & (batch.student_top >= 0)
    unbounded = [np.isinf(columns[:, column]) for column in (1, 3)]
    counts = [
        batch.teacher_logprobs,
        batch.student_logprobs,
        np.exp(batch.teacher_logprobs) - np.exp(batch.student_logprobs),
        batch.limits.unresolved_teacher,
        batch.limits.unresolved_student,
        *ranks,
        ranks[0] == 1,
        ranks[1] == 1,
        ranks[0] > 0,
        ranks[1] > 0,
        has_top & (batch.teacher_top == batch.student_top),
        has_top,
        batch.is_beyond_vocabulary,
        *unbounded,
    ]
    limits = np.delete(columns, (10, 11), axis=1)
    limits[:, 1][unbounded[0]] = 0.0
    limits[:, 3][unbounded[1]] = 0.0
    log_ratios = batch.teacher_logprobs - batch.student_logprobs
    return np.vstack([*off_policy.ratio_columns(log_ratios), *counts, limits.T])
