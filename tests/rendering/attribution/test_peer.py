"""Attribution against hand-written renderers, one for each family of models.

gpt-oss is left out: its peer fetches a vocabulary from the network. docs/attribution.md has its numbers.
"""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.rendering.families import Families
from tests.rendering.peer import load_peer
from tests.rendering.shapes import SHAPES
from tokscore.rendering import ConversationError, RenderedTokens
from tokscore.rendering.attribution.settings import Verify


class Pair(NamedTuple):
    """A template and the renderer that was written after it.

    Attributes:
        template: Its name; `own/NAME` is the template that the tokenizer NAME brings.
        peer: Name of the renderer.
        enable_thinking: The template variable, where it is given.
    """

    template: str
    peer: str
    enable_thinking: bool | None = None


PAIRS = [
    Pair("qwen3", "qwen3"),
    Pair("qwen3", "qwen3", enable_thinking=False),
    Pair("own/qwen3", "qwen3"),
    Pair("qwen3_instruct_2507", "qwen3"),
    Pair("qwen3_vl", "qwen3-vl"),
    Pair("qwen3_5_think", "qwen3.5", enable_thinking=True),
    Pair("qwen3_5_nothink", "qwen3.5", enable_thinking=False),
    Pair("qwen3_6", "qwen3.6"),
    Pair("qwen3_6", "qwen3.6", enable_thinking=False),
    Pair("qwen3_8", "qwen3.8"),
    Pair("deepseekv3", "deepseek-v3"),
    Pair("own/deepseek_v3", "deepseek-v3"),
    Pair("deepseek_r1_distill", "deepseek-r1"),
    Pair("glm4moe", "glm-4.5"),
    Pair("llama3_1", "llama-3"),
    Pair("llama3_2", "llama-3"),
    Pair("nemotron_3_nano", "nemotron-3"),
    Pair("nemotron_3_super", "nemotron-3"),
    Pair("nemotron_3_ultra", "nemotron-3-ultra"),
    Pair("nemotron_3_5_lightning", "nemotron-3.5"),
]


@pytest.fixture(scope="module")
def peer(assets: Path) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield load_peer(assets / "peer", monkeypatch)


def mask_differences(tokens: RenderedTokens, theirs: list[bool]) -> set[str]:
    """Kinds of difference; `think prefix` is a policy, `newline` is GLM's."""
    kinds = set()
    for k in np.flatnonzero(tokens.sampled_mask != np.array(theirs, np.int8)).tolist():
        owned = tokens.message_indices == tokens.message_indices[k]
        first = int(np.argmax(owned & (tokens.sampled_mask == 1)))
        if tokens.sampled_mask[k] == -1:
            kinds.add("unknown")
        elif tokens.sampled_mask[k] == 0 and k < first:
            kinds.add("think prefix")
        elif tokens.sampled_mask[k] == 1 and k == first:
            kinds.add("newline")
        else:
            kinds.add("other")
    return kinds


def index_differences(tokens: RenderedTokens, theirs: list[int]) -> set[str]:
    """Kinds of difference, as docs/attribution.md explains them; `other` has no explanation."""
    kinds = set()
    for k in np.flatnonzero(tokens.message_indices != np.array(theirs)).tolist():
        if tokens.message_indices[k] == -1 and tokens.messages[theirs[k]].role in ("system", "user"):
            kinds.add("beside a message outside the loop")
        elif tokens.sampled_mask[k] == 1 and theirs[k] == tokens.message_indices[k] - 1:
            kinds.add("role marker that ends an answer")
        elif tokens.messages[theirs[k]].role == "tool" and tokens.message_indices[k] == theirs[k] + 1:
            kinds.add("marker that ends tool results")
        else:
            kinds.add("other")
    return kinds


@pytest.mark.slow
def test_masks_and_message_indices_equal_those_of_hand_written_renderers(
    families: Families, peer: Any
) -> None:
    masks: Counter[tuple[str, str]] = Counter()
    indices: Counter[str] = Counter()
    n_renderings = 0
    for pair, add_generation_prompt in itertools.product(PAIRS, (False, True)):
        given = {} if pair.enable_thinking is None else {"enable_thinking": pair.enable_thinking}
        name = pair.template.removeprefix("own/")
        renderer = families.renderer(
            name,
            source=families.own_template(name) if name != pair.template else None,
            add_generation_prompt=add_generation_prompt,
            verify=Verify.OFF,
            date_string="26 Jul 2024",  # as the peer for Llama has it
            **given,
        )
        config = peer.config_from_name(pair.peer).model_copy(update=given)
        hand_written = peer.create_renderer(renderer.tokenizer.hf, config)
        for conversation in SHAPES.values():
            try:
                ours = renderer.render(conversation)
                theirs = hand_written.render(
                    copy.deepcopy(list(conversation.messages)),
                    tools=copy.deepcopy(conversation.tools),
                    add_generation_prompt=add_generation_prompt,
                )
            except (ConversationError, ValueError, TypeError):
                continue
            if theirs.token_ids == ours.token_ids.tolist():
                n_renderings += 1
                masks.update((name, kind) for kind in mask_differences(ours, theirs.sampled_mask))
                indices.update(index_differences(ours, theirs.message_indices))
    # docs/attribution.md has the reasons.
    assert n_renderings >= 447
    assert {kind for _, kind in masks} == {"think prefix", "newline"}
    assert {name for name, kind in masks if kind == "newline"} == {"glm4moe"}
    assert masks["glm4moe", "newline"] <= n_renderings * (447 - 420) / 447
    assert set(indices) == {
        "beside a message outside the loop",
        "marker that ends tool results",
        "role marker that ends an answer",
    }
    assert indices["marker that ends tool results"] == 1
