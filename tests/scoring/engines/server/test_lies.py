"""Servers that do one thing wrong are refused by its name, before anything is scored."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.scoring.engines.server.served import Served
from tokscore.dataset.errors import EngineError
from tokscore.scoring import Engine
from tokscore.scoring.engines.server.dialects import DIALECTS
from tokscore.scoring.engines.server.dialects.dialect import AnswerError, Question

LIES = {
    ("vllm", "few rows"): "returns rows for .* as servers do that leave out what they cached",
    ("sglang", "few rows"): "returns rows for .* as servers do that leave out what they cached",
    ("vllm", "stale"): "returns stale rows: behind a beginning that it saw before",
    ("sglang", "stale"): "returns stale rows: behind a beginning that it saw before",
    ("vllm", "cut"): "cuts lists of the most likely ids: [34] of 5",
    ("sglang", "cut"): "cuts lists of the most likely ids: [34] of 5",
    ("vllm", "order"): "lists of the most likely ids are in no descending order",
    ("sglang", "order"): "lists of the most likely ids are in no descending order",
    ("vllm", "round"): "rounds logprobs: all are multiples of 0.0001",
    ("vllm", "16 bits"): "rounds logprobs: all are of 16 bits",
    ("vllm", "temperature"): "applies the temperature to the logprobs of prompts",
    ("sglang", "temperature"): "applies the temperature to the logprobs of prompts",
    ("vllm", "penalty"): "applies penalties to the logprobs of prompts",
    ("vllm", "bos"): "adds a token in front, id 0",
    ("sglang", "bos"): "adds a token",
    ("echo", "bos"): "adds a token",
    ("vllm", "hidden bos"): "gives the first token a logprob.*such as a BOS",
    ("vllm", "other ids"): "returns other ids than it was sent",
    ("sglang", "other ids"): "returns other ids than it was sent",
    ("echo", "other ids"): "returns other ids than it was sent",
    ("vllm", "noise"): "its logprobs move by .* nats when asked again",
    ("vllm", "company"): "its logprobs move by .* nats when asked for beside others",
}


@pytest.mark.parametrize(("kind", "lie"), LIES)
@pytest.mark.slow
def test_a_lying_server_is_refused_by_name(
    kind: str, lie: str, serve: Callable[..., tuple[Served, str]], connect: Callable[..., Engine]
) -> None:
    _, url = serve(kind, lie)
    with pytest.raises(EngineError, match=f"{url} cannot be used: [^.]*{LIES[kind, lie]}"):
        connect(url, server_kind=kind)


def listed(kind: str, listed_id: Any) -> dict[str, Any]:
    """An answer for the tokens 1 and 2, of which another id is the likeliest."""
    if kind == "vllm":
        row = {"2": {"logprob": -1.5, "rank": 2}, str(listed_id): {"logprob": -0.5, "rank": 1}}
        return {"choices": [{"prompt_logprobs": [None, row]}]}
    rows = {
        "input_token_logprobs": [[None, 1, None], [-1.5, 2, None]],
        "input_top_logprobs": [None, [[-0.5, listed_id, None]]],
    }
    return {"meta_info": rows}


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [("vllm", 2**31), ("vllm", 2**32 + 1), ("sglang", -1), ("sglang", 2**31), ("sglang", 0.5)],
)
def test_what_is_no_id_is_not_cut_to_one(kind: str, wrong: float) -> None:
    question = Question(np.array([1, 2], np.int32), top_k=1)
    most = DIALECTS[kind].read(json.dumps(listed(kind, 2**31 - 1)).encode(), question)
    assert most.top_ids.tolist() == [[2**31 - 1]]
    with pytest.raises(AnswerError, match=f"most likely ids hold {wrong}, which is no id"):
        DIALECTS[kind].read(json.dumps(listed(kind, wrong)).encode(), question)
