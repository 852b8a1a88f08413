"""Conversations as the page carries them."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

import numpy as np
import pytest

from tokscore.analytics.report.conversation.scored import ScoredConversation
from tokscore.analytics.report.packing import pack, script_json
from tokscore.analytics.report.reading import ComparedDatasets


def unpacked(text: str) -> dict[str, Any]:
    """The same as decode.js, in Python."""
    stored = json.loads(text)
    block = zlib.decompress(base64.b64decode(stored["block"]))
    offset = 0
    for name, kind, length in stored["columns"]:
        width = np.dtype(kind).itemsize
        planes = np.frombuffer(block, np.uint8, width * length, offset).reshape(width, length)
        stored[name] = np.ascontiguousarray(planes.T).view(f"<{kind}").ravel()
        offset += width * length
    assert offset == len(block)
    return stored


@pytest.fixture(scope="module")
def conversation(scores: Any) -> ScoredConversation:
    return ComparedDatasets(*scores).find("long")


def test_numbers_come_back_with_four_digits(conversation: ScoredConversation) -> None:
    stored = unpacked(pack(conversation).json)
    np.testing.assert_array_equal(stored["ids"], conversation.token_ids)
    np.testing.assert_array_equal(stored["rank"][1:], conversation.teacher.ranks[1:])
    assert stored["rank"][0] == 0
    for prefix, side in (("", conversation.teacher), ("student_", conversation.student)):
        np.testing.assert_allclose(stored[f"{prefix}logprob"], side.logprobs, rtol=2**-12)
        np.testing.assert_allclose(stored[f"{prefix}entropy"], side.entropies, rtol=2**-12)


def test_limits_are_rounded_outwards(conversation: ScoredConversation) -> None:
    stored, gjs = unpacked(pack(conversation).json), conversation.gjs
    assert (stored["gjs_lower"][1:] <= gjs.lower[1:]).all()
    assert (stored["gjs_upper"][1:] >= gjs.upper[1:]).all()
    np.testing.assert_allclose(stored["gjs_lower"], gjs.lower, rtol=2**-11)
    np.testing.assert_allclose(stored["gjs_upper"], gjs.upper, rtol=2**-11)
    least = conversation.student.top_logprobs[1:].min(axis=1)
    assert (stored["student_cap"][1:] >= least).all()


def test_lists_hold_each_id_once_with_what_each_model_says(conversation: ScoredConversation) -> None:
    stored = unpacked(pack(conversation).json)
    stops = np.cumsum(stored["n_listed"])
    for i in range(1, len(conversation)):
        at = slice(stops[i - 1], stops[i])
        ids = stored["listed_ids"][at].tolist()
        assert len(ids) == len(set(ids))
        assert int(conversation.token_ids[i]) in ids
        for prefix, side in (("", conversation.teacher), ("student_", conversation.student)):
            known = dict(zip(side.top_ids[i].tolist(), side.top_logprobs[i].tolist(), strict=True))
            known[int(conversation.token_ids[i])] = side.logprobs[i]
            expected = [known.get(token_id, np.nan) for token_id in ids]
            np.testing.assert_allclose(stored[f"{prefix}listed"][at], expected, rtol=2**-12)
            assert int(side.top_ids[i, 0]) in ids


def test_every_id_that_occurs_is_named(conversation: ScoredConversation) -> None:
    packed = pack(conversation)
    stored = unpacked(packed.json)
    assert set(packed.token_ids.tolist()) == {*stored["ids"].tolist(), *stored["listed_ids"].tolist()}


def test_runs_say_who_owns_each_token(conversation: ScoredConversation) -> None:
    starts, messages, sources, contents, sampled = unpacked(pack(conversation).json)["runs"]
    assert (starts, messages) == ([0, 1, 16], [-1, 0, 1])
    assert [conversation.sources[code] for code in sources] == ["template", "content", "content"]
    assert (contents, sampled) == ([0, 1, 1], [0, 0, 1])


def test_no_json_can_end_its_script_element() -> None:
    value = {"a": "</script><!--<script>\u2028"}
    assert "<" not in script_json(value)
    assert json.loads(script_json(value)) == value
