"""Servers that do one thing wrong are refused by its name, before anything is scored."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.scoring.engines.server.served import Served
from tokscore.dataset.errors import EngineError
from tokscore.scoring import Engine

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
def test_a_lying_server_is_refused_by_name(
    kind: str, lie: str, serve: Callable[..., tuple[Served, str]], connect: Callable[..., Engine]
) -> None:
    _, url = serve(kind, lie)
    with pytest.raises(EngineError, match=f"{url} cannot be used: [^.]*{LIES[kind, lie]}"):
        connect(url, server_kind=kind)
