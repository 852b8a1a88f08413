"""Prompts and answers as a trainer printed them."""

from __future__ import annotations

from typing import Any

import pytest

from tokscore.rendering.reading.formats.text_dump import FORMAT as TEXT_DUMP

from .message_records import failure, metadata, records, said, trace


def test_text_dump_is_text_that_a_template_printed() -> None:
    prompt = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    verl, skyrl, empty = (trace(TEXT_DUMP, record) for record in records("text_dump.jsonl"))
    assert verl.is_text
    assert said(verl) == [[("user", prompt), ("assistant", "Hello!<|im_end|>")]]
    assert [node.is_sampled for node in verl.nodes] == [False, True]
    assert said(skyrl) == [[("user", prompt), ("assistant", "What?<|im_end|>")]]
    assert said(empty) == [[("user", "Hi"), ("assistant", "")]]


def test_text_dump_keeps_all_other_fields_as_metadata() -> None:
    verl, skyrl, _ = (trace(TEXT_DUMP, record) for record in records("text_dump.jsonl"))
    assert metadata(verl) == {
        "gts": "Hello!",
        "score": 1.0,
        "step": 5,
        "acc": True,
        "rendered_text": True,
    }
    assert metadata(skyrl) == {
        "score": [0.0, 0.5],
        "stop_reason": "stop",
        "env_class": "gsm8k",
        "env_extras": {"answer": "4"},
        "data_source": "sums",
        "rendered_text": True,
    }


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (
            {"input": "Hi", "score": 1},
            "$.output is missing; expected the text of an answer, found the keys input, score.",
        ),
        (
            {"input_prompt": 4, "output_response": "Hi"},
            "$.input_prompt is a number; expected the text of a prompt.",
        ),
        ({"input": "", "output": "", "score": 1}, "$.input and output are empty; expected text."),
    ],
)
def test_text_dump_says_what_is_wrong(record: dict[str, Any], expected: str) -> None:
    assert failure(TEXT_DUMP, record) == expected
