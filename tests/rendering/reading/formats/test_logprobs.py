"""Which recorded logprobs are taken, in every format."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tokscore.dataset.errors import ConversationError
from tokscore.rendering.reading.fields.values import logprob_array

from .recorded_records import WITH_IDS, parse


@pytest.mark.parametrize(
    ("name", "where", "path"),
    [
        ("verifiers", ["traces", 0, "nodes", 1, "logprobs", 0], "$.traces[0].nodes[1].logprobs[0]"),
        (
            "verifiers_results",
            ["trajectory", 0, "tokens", "completion_logprobs", 0],
            "$.trajectory[0].tokens.completion_logprobs[0]",
        ),
        ("prime_rl", ["inference_logprobs", -1], "$.inference_logprobs["),
        ("atropos", ["inference_logprobs", 0, -1], "$.inference_logprobs[0]["),
        ("tokens", ["logprobs", -1], "$.logprobs["),
    ],
)
@pytest.mark.parametrize("value", [0.5, 3, float("nan")])
def test_a_recorded_logprob_above_zero_is_refused(
    name: str, where: list[Any], path: str, value: float
) -> None:
    chosen = WITH_IDS[name]
    record = json.loads(chosen.example)
    at: Any = record
    for key in where[:-1]:
        at = at[key]
    at[where[-1]] = value
    with pytest.raises(ConversationError) as caught:
        parse(chosen, record)
    assert caught.value.path.startswith(path)


def test_a_logprob_of_minus_infinity_and_one_of_rounding_stay() -> None:
    found = logprob_array([float("-inf"), 5e-6, None], "$.logprobs")
    np.testing.assert_array_equal(found, np.array([-np.inf, 5e-6, np.nan], np.float32))


@pytest.mark.parametrize("value", [10**400, 1e300, float("inf"), True, "1"])
def test_a_logprob_that_is_no_number_of_that_size_is_refused(value: object) -> None:
    with pytest.raises(ConversationError, match="expected a number or null"):
        logprob_array([value], "$.logprobs")
