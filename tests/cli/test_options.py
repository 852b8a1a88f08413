from __future__ import annotations

from enum import StrEnum

import pytest

from tokscore.analytics import GroupBy
from tokscore.analytics.divergence.sampled_kl import Sampler
from tokscore.analytics.report.metrics import Metric
from tokscore.cli import options
from tokscore.dataset.choices import OnError
from tokscore.rendering.attribution.length import Truncate
from tokscore.rendering.attribution.renderer import Verify
from tokscore.rendering.templates.limits import DEFAULT_LIMITS, TemplateLimits
from tokscore.scoring import ENGINES
from tokscore.scoring.engines.spec import AUTO, DTYPES


@pytest.mark.parametrize(
    ("choices", "values"),
    [
        (options.GroupBy, list(GroupBy)),
        (options.MetricChoice, list(Metric)),
        (options.SamplerChoice, list(Sampler)),
        (options.OnErrorChoice, list(OnError)),
        (options.VerifyChoice, list(Verify)),
        (options.TruncateChoice, list(Truncate)),
        (options.EngineChoice, [AUTO, *ENGINES]),
        (options.DtypeChoice, list(DTYPES)),
    ],
)
def test_the_choices_of_an_option_are_those_of_its_room(choices: type[StrEnum], values: list[str]) -> None:
    assert sorted(choices) == sorted(values)


def test_the_limits_on_templates_are_those_of_the_room() -> None:
    assert TemplateLimits(options.TEMPLATE_TIMEOUT_S, options.TEMPLATE_CHARACTERS) == DEFAULT_LIMITS
