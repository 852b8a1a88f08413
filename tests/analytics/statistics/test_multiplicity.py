"""Many cells at once."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import false_discovery_control

from tokscore.analytics.statistics.multiplicity import benjamini_hochberg, replicates_for
from tokscore.dataset.errors import InputError


@pytest.mark.parametrize("n_cells", [1, 2, 17, 1000])
def test_adjusted_p_values_equal_those_of_scipy(n_cells: int) -> None:
    # Rounded, so that many are tied.
    p_values = np.random.default_rng(n_cells).beta(0.4, 1, n_cells).round(2)
    np.testing.assert_allclose(benjamini_hochberg(p_values), false_discovery_control(p_values), rtol=1e-14)


def test_a_cell_without_a_test_does_not_count() -> None:
    adjusted = benjamini_hochberg([0.01, np.nan, 0.04, np.nan])
    np.testing.assert_allclose(adjusted, [0.02, np.nan, 0.04, np.nan], rtol=1e-15)
    assert benjamini_hochberg([]).shape == (0,)
    assert np.isnan(benjamini_hochberg([np.nan])).all()


@pytest.mark.parametrize("p_value", [-0.1, 1.1, np.inf])
def test_a_p_value_out_of_range_is_named(p_value: float) -> None:
    with pytest.raises(InputError, match="cell 1 has the p-value"):
        benjamini_hochberg([0.5, p_value])


@pytest.mark.parametrize("n_cells", [25, 26, 400, 1000])
def test_replicates_let_one_gap_among_many_cells_be_found(n_cells: int) -> None:
    n_replicates = replicates_for(n_cells)
    p_values = np.ones(n_cells)
    p_values[0] = 2 / (n_replicates + 1)
    assert benjamini_hochberg(p_values)[0] <= 0.05 * (1 + 1e-12)
    assert replicates_for(10**6) == replicates_for(1000) == 39_999
