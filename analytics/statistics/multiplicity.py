"""Many p-values at once: which gaps are found where hundreds of cells were looked at."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tokscore.analytics.statistics.bootstrap import N_REPLICATES
from tokscore.dataset.errors import InputError

MAX_REPLICATES = 39_999


def benjamini_hochberg(p_values: ArrayLike) -> NDArray[np.float64]:
    """Adjusted p-values: of the cells at or below q, a share of at most q is expected to be false.

    Args:
        p_values: One per cell, shape [cells], between 0 and 1; NaN for a cell without a test, which
            stays NaN and does not count.

    Raises:
        InputError: A p-value is out of range, or there is more than one axis.

    Source:
        Benjamini and Hochberg (1995), Controlling the False Discovery Rate. It holds for
        independent cells and for positively dependent ones: Benjamini and Yekutieli (2001).
    """
    p = np.asarray(p_values, np.float64)
    if p.ndim != 1:
        raise InputError(f"p-values have shape {p.shape}; expected [cells].")
    outside = (p < 0) | (p > 1)
    if outside.any():
        cell = int(np.argmax(outside))
        raise InputError(f"cell {cell} has the p-value {p[cell]:g}; expected 0 to 1.")
    tested = np.flatnonzero(~np.isnan(p))
    falling = tested[np.argsort(-p[tested], kind="stable")]
    ranks = np.arange(len(falling), 0, -1)
    adjusted = np.full(p.shape, np.nan)
    # With q at least p already, the largest rank's factor of 1 is the only cap that is needed.
    adjusted[falling] = np.minimum.accumulate(p[falling] * (len(falling) / ranks))
    return adjusted


def replicates_for(n_cells: int, level: float = 0.05) -> int:
    """Bootstrap replicates that let a single gap among `n_cells` be found at `level`.

    A p-value is never below 2 / (replicates + 1), and the smallest of n must be at most level / n.
    At most 39,999, which is enough for 1,000 cells at 0.05; beyond, several must stand out together.
    """
    needed = math.ceil(2 * n_cells / level - 1e-9) - 1
    return min(max(N_REPLICATES, needed), MAX_REPLICATES)
