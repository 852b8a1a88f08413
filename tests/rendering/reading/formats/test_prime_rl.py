"""Token exports of a prime-rl trainer."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tokscore.rendering.reading.formats.prime_rl import FORMAT as PRIME_RL

from .recorded_records import changed, expect_error, metadata, parse, read, records, rows


def test_prime_rl_gives_every_token_and_no_logprob_outside_the_mask() -> None:
    trace = read("prime_rl", 0)
    assert rows(trace) == [
        (1, None, 0, None),
        (20, None, 0, None),
        (3, None, 0, None),
        (30, "assistant", 1, -0.5),
        (2, "assistant", 1, 0.0),
        (4, None, 0, None),
        (3, None, 0, None),
        (50, "assistant", 1, -1.5),
    ]
    assert [node.is_sampled for node in trace.nodes] == [False, True, False, True]


def test_prime_rl_keeps_what_the_trainer_computed() -> None:
    found = metadata(read("prime_rl", 0))
    assert (found["step"], found["rank"], found["sample_id"]) == (3, 1, "s1")
    assert found["advantages"] == records("prime_rl")[0]["advantages"]


def test_prime_rl_gives_the_logprobs_of_the_trainer_but_for_the_first_of_a_packed_batch() -> None:
    parts = [node.tokens.trainer_logprobs.tolist() for node in read("prime_rl", 0).nodes]
    first, *others = [value for part in parts for value in part]
    assert math.isnan(first)
    assert others == records("prime_rl")[0]["trainer_logprobs"][1:]


def test_prime_rl_spreads_logprobs_of_the_mask() -> None:
    assert rows(read("prime_rl", 1)) == [
        (1, None, 0, None),
        (30, "assistant", 1, -0.5),
        (2, "assistant", 1, -0.25),
    ]


def test_prime_rl_without_sampled_tokens_has_no_turn() -> None:
    trace = read("prime_rl", 2)
    assert rows(trace) == [(30, None, 0, None), (2, None, 0, None)]
    assert not any(node.is_sampled for node in trace.nodes)


def test_the_path_of_an_export_gives_step_and_rank() -> None:
    trace = parse(PRIME_RL, records("prime_rl")[1], "run/token_exports/step_40/rank_2.jsonl")
    assert metadata(trace) == {"step": 40, "rank": 2}


@pytest.mark.parametrize(
    ("where", "value", "path", "reason"),
    [
        (
            ["inference_logprobs"],
            [-1.0] * 4,
            "$.inference_logprobs",
            "has 4 values; expected 3, one a token id, or 2, one where loss_mask is true.",
        ),
        (["loss_mask"], [1], "$.loss_mask", "has 1 value for 3 token ids."),
        (["token_ids"], [1, -1, 2], "$.token_ids[1]", "is -1; expected a token id."),
        (["token_ids"], [], "$.token_ids", "is empty; expected at least one token id."),
        (["step"], "3", "$.step", "is a string; expected a whole number."),
    ],
)
def test_a_bad_record_names_its_path(where: list[Any], value: object, path: str, reason: str) -> None:
    expect_error(PRIME_RL, changed("prime_rl", 1, where, value), path, reason)
