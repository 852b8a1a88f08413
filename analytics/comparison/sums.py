"""The columns that `diff` adds up: a value per compared token."""

from __future__ import annotations

import numpy as np

from tokscore.analytics.comparison import off_policy
from tokscore.analytics.comparison.compare import ComparedBatch
from tokscore.analytics.divergence.measures import measures
from tokscore.analytics.divergence.topk import FloatArray


def summed_columns(batch: ComparedBatch) -> dict[str, FloatArray]:
    """Values by name, each of shape [tokens]: measures as their columns, importance ratios, ranks and counts.

    Upper limits that are not there count as 0, and are counted as `n_unbounded_...`.
    """
    tokens = batch.measures
    columns = dict(off_policy.ratio_columns(tokens["log_ratio"]))
    for measure in measures(tokens.alphas):
        columns |= {name: tokens[name] for name in measure.columns}
        if measure.may_be_unbounded:
            upper = measure.columns[1]
            is_unbounded = np.isinf(tokens[upper])
            columns[upper] = np.where(is_unbounded, 0.0, tokens[upper])
            columns[f"n_unbounded_{measure.name}"] = is_unbounded.astype(np.float64)
    has_top = (batch.teacher_top >= 0) & (batch.student_top >= 0)
    counted = {
        "n_agreeing": has_top & (batch.teacher_top == batch.student_top),
        "n_top1": has_top,
        "n_beyond_vocabulary": batch.is_beyond_vocabulary,
    }
    for side, ranks in (("teacher", batch.teacher_ranks), ("student", batch.student_ranks)):
        columns[f"{side}_rank"] = np.nan_to_num(ranks)
        counted |= {f"n_{side}_rank1": ranks == 1, f"n_{side}_ranked": ranks > 0}
    return columns | {name: is_one.astype(np.float64) for name, is_one in counted.items()}
