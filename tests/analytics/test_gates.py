"""Conditions of `--fail-if` as they are written."""

from __future__ import annotations

import pytest

from tokscore.analytics import parse_gate, parse_group_by


@pytest.mark.parametrize(
    ("by", "text", "group", "metric"),
    [
        ("role", "gjs_0.5.lower > 0.05", {}, "gjs_0.5.lower"),
        ("role", "all: log_ratio < -1", {}, "log_ratio"),
        ("role", "role=tool:gjs_1e-05.lower>0", {"role": "tool"}, "gjs_1e-05.lower"),
        (
            "conversation_id",
            "conversation_id=convs.jsonl:1: log_ratio > 0",
            {"conversation_id": "convs.jsonl:1"},
            "log_ratio",
        ),
        (
            "metadata.task,role",
            "metadata.task=sort, then x=y: 3, role=user: delta_p >= 1e-3",
            {"metadata.task": "sort, then x=y: 3", "role": "user"},
            "delta_p",
        ),
    ],
)
def test_values_may_hold_colons_and_commas(by: str, text: str, group: dict[str, str], metric: str) -> None:
    gate = parse_gate(text, parse_group_by(by))
    assert (gate.group, gate.metric) == (group, metric)
