"""Prompts and completions that are plain text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.conftest import CHATML
from tokscore.rendering import ChatTokenizer, RenderedTokens, Renderer
from tokscore.rendering.conversations.trace import Trace
from tokscore.rendering.reading.formats.format import Place
from tokscore.rendering.reading.formats.trl import FORMAT as TRL
from tokscore.rendering.recorded_ids.attribute import attribute_recorded, branch_items
from tokscore.rendering.recorded_ids.branch import RecordedBranch

BOS = 128000  # of Llama 3.1


@pytest.fixture(scope="module")
def with_bos(assets: Path) -> Renderer:
    return Renderer(ChatTokenizer(str(assets / "tokenizers" / "llama3_1"), template=CHATML))


@pytest.fixture(scope="module")
def without_bos(qwen3: Path) -> Renderer:
    return Renderer(ChatTokenizer(str(qwen3), template=CHATML))


def branches(renderer: Renderer, **record: str) -> list[RenderedTokens]:
    trace = TRL.parse(record, Place(Path("texts.jsonl"), 1))
    assert isinstance(trace, Trace)
    items = branch_items(trace, renderer.tokenizer)
    return [attribute_recorded(item, renderer).tokens for item in items if isinstance(item, RecordedBranch)]


@pytest.mark.parametrize(("name", "n_added"), [("with_bos", 1), ("without_bos", 0)])
@pytest.mark.parametrize("prompt", ["2 + 2 =", ""])
def test_a_prompt_has_the_ids_that_transformers_gives_it(
    name: str, n_added: int, prompt: str, request: pytest.FixtureRequest
) -> None:
    renderer: Renderer = request.getfixturevalue(name)
    for found in branches(renderer, prompt=prompt, chosen=" 4", rejected=" five"):
        hf = renderer.tokenizer.hf
        before = hf(prompt)["input_ids"]
        answer = found.token_ids[len(before) :]
        assert found.token_ids[: len(before)].tolist() == before
        assert answer.tolist() in (
            hf(text, add_special_tokens=False)["input_ids"] for text in (" 4", " five")
        )
        owners = [-1] * n_added + [0] * (len(before) - n_added) + [1] * len(answer)
        assert found.message_indices.tolist() == owners
        assert found.sampled_mask.tolist() == [owner == 1 for owner in owners]
        np.testing.assert_array_equal(found.is_content, found.message_indices >= 0)


def test_a_text_that_opens_with_the_bos_gets_no_other(with_bos: Renderer) -> None:
    (plain,) = branches(with_bos, prompt="2 + 2 =", completion=" 4")
    (printed,) = branches(with_bos, prompt="<|begin_of_text|>2 + 2 =", completion=" 4")
    assert printed.token_ids.tolist() == plain.token_ids.tolist()
    assert plain.token_ids.tolist().count(BOS) == 1


def test_a_completion_behind_an_empty_prompt_opens_the_text(with_bos: Renderer) -> None:
    texts = "<|begin_of_text|>4 it is", "4 it is"
    chosen, rejected = branches(with_bos, prompt="", chosen=texts[0], rejected=texts[1])
    assert chosen.token_ids.tolist() == rejected.token_ids.tolist()
    assert chosen.token_ids.tolist().count(BOS) == 1
    # One was written in the completion, the other put before it.
    assert (chosen.message_indices[0], chosen.sampled_mask[0]) == (1, 1)
    assert (rejected.message_indices[0], rejected.sampled_mask[0]) == (-1, 0)
