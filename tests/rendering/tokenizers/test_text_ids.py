"""fastokens makes the ids only where it is proven to make the same, and is given up where it does not."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import CHATML
from tests.rendering.attribution.answer_shapes import ANSWER_SHAPES
from tests.rendering.attribution.reference import NOW
from tests.rendering.families import Families
from tests.rendering.published import published_templates
from tokscore.dataset.manifest import read_manifest
from tokscore.dataset.tokens import RenderedTokens
from tokscore.rendering import (
    ChatTokenizer,
    Conversation,
    ConversationError,
    InputError,
    Renderer,
    open_source,
)
from tokscore.rendering.attribution.settings import Verify
from tokscore.rendering.batches import render_many
from tokscore.rendering.run import render_source
from tokscore.rendering.tokenizers import text_ids
from tokscore.rendering.tokenizers.probes import probe_texts

NAMES = ("deepseek_v3", "gemma3", "gptoss", "llama3_1", "qwen3")
CODE_POINTS = [*range(0xD800), *range(0xE000, 0x110000)]

_loaded: dict[str, ChatTokenizer] = {}


def fast(assets: Path, name: str) -> ChatTokenizer:
    """One of the real tokenizers, with fastokens; proven equal on the probes, or it is no fastokens."""
    if name not in _loaded:
        _loaded.clear()
        _loaded[name] = ChatTokenizer(str(assets / "tokenizers" / name), template=CHATML, library="fastokens")
    return _loaded[name]


def differences(tokenizer: ChatTokenizer, texts: list[str]) -> list[str]:
    ours, theirs = tokenizer.token_ids(texts), tokenizer.ids.by_tokenizers(texts)
    return [text for text, a, b in zip(texts, ours, theirs, strict=True) if not np.array_equal(a, b)]


def random_texts(rng: random.Random, added: list[str], n_characters: int) -> list[str]:
    """Texts of one or several kinds of characters."""
    kinds: list[Callable[[], str]] = [
        lambda: chr(rng.randrange(128)),
        lambda: chr(rng.choice(CODE_POINTS)),
        lambda: chr(rng.randrange(0xD800)),
        lambda: rng.choice(" \t\n\r\v\f\x85\xa0\u2003\u2028\u3000\u200b\ufeff  \n"),
        lambda: rng.choice("aeiouÅéשדมก한각") + chr(rng.randrange(0x300, 0x370)) * rng.randrange(4),
        lambda: rng.choice("0123456789.,٣४፩²½"),
        lambda: rng.choice("😀👨\u200d\ufe0f🏽🇩🇪"),
        lambda: rng.choice(["don't", "I'LL", " the", "'S", "ſ", "K", "ʼn", " we've", "\n\n", "  "]),
        lambda: rng.choice(added),
    ]
    texts: list[str] = []
    while n_characters > 0:
        chosen = rng.sample(kinds, rng.choice([1, 1, 2, len(kinds)]))
        texts.append("".join(rng.choice(chosen)() for _ in range(rng.choice([1, 3, 20, 200, 2000]))))
        n_characters -= len(texts[-1])
    return texts


def added_texts(tokenizer: ChatTokenizer) -> list[str]:
    return [token.content for token in tokenizer.hf.added_tokens_decoder.values()]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.slow
def test_ids_of_random_text_are_equal(assets: Path, name: str) -> None:
    tokenizer = fast(assets, name)
    assert tokenizer.ids.made_by.startswith("fastokens ")
    texts = random_texts(random.Random(1), added_texts(tokenizer), 200_000)
    assert differences(tokenizer, texts) == []

    @given(st.text(max_size=200))
    @settings(max_examples=100)
    def is_equal(text: str) -> None:
        assert differences(tokenizer, [text]) == []

    is_equal()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [NAMES[0], *(pytest.param(name, marks=pytest.mark.nightly) for name in NAMES[1:])]
)
def test_ids_of_ten_megabytes_of_random_text_and_of_every_character_are_equal(
    assets: Path, name: str
) -> None:
    tokenizer = fast(assets, name)
    added, rng, n_bytes = added_texts(tokenizer), random.Random(2), 0
    while n_bytes < 10_000_000:
        texts = random_texts(rng, added, 100_000)
        n_bytes += sum(len(text.encode()) for text in texts)
        assert differences(tokenizer, texts) == []
    for form in ("{0}", "x{0}y {0}{0}1{0} ", "'{0}\n{0} {0}"):
        characters = [form.format(chr(code)) for code in CODE_POINTS]
        blocks = ["".join(characters[i : i + 100]) for i in range(0, len(characters), 100)]
        assert differences(tokenizer, blocks) == []


def printed(families: Families) -> list[str]:
    """Texts of every shape of conversation by every published template at hand."""
    texts: set[str] = set()
    for published in published_templates(families):
        tokenizer = published.tokenizer
        tokenizer.template = published.source
        renderer = Renderer(
            tokenizer, template_kwargs=published.variables, verify=Verify.OFF, template_time=NOW
        )
        for conversation in ANSWER_SHAPES.values():
            with suppress(ConversationError):
                texts.add(renderer.render(conversation).text)
    return sorted(texts)


@pytest.mark.slow
def test_ids_of_what_templates_print_are_equal(assets: Path, families: Families) -> None:
    """With the special tokens of a tokenizer and with those of others, which are text to it."""
    texts = printed(families)
    assert len(texts) > 2_000
    for name in NAMES:
        assert differences(fast(assets, name), texts) == []


def test_probes_are_the_same_in_every_call_and_are_text() -> None:
    probes = list(probe_texts(["<|a|>", "|>b"]))
    assert probes == list(probe_texts(["<|a|>", "|>b"]))
    assert "x<|a|>by" in probes  # two added tokens that share characters
    "".join(probes).encode()


Change = Callable[[dict[str, Any]], None]


def changed_model(tiny_model: Path, folder: Path, change: Change) -> str:
    """A copy of the tokenizer with another tokenizer.json."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((tiny_model / name).read_bytes())
    pipeline = json.loads((folder / "tokenizer.json").read_text())
    change(pipeline)
    (folder / "tokenizer.json").write_text(json.dumps(pipeline))
    return str(folder)


def add_tokens(pipeline: dict[str, Any], *texts: str) -> None:
    """Add tokens of which every other one is looked for in the normalised text."""
    common = {"single_word": False, "lstrip": False, "rstrip": False}
    first = max(token["id"] for token in pipeline["added_tokens"]) + 1
    for i, text in enumerate(texts):
        added = {"id": first + i, "content": text, "normalized": i % 2 == 0, "special": i % 3 == 0}
        pipeline["added_tokens"].append(common | added)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda pipeline: pipeline.update(normalizer={"type": "NFKC"}), "unsupported normalizer type: NFKC"),
        (
            lambda pipeline: pipeline.update(pre_tokenizer={"type": "UnicodeScripts"}),
            "unsupported pre-tokenizer type: UnicodeScripts",
        ),
        (lambda pipeline: pipeline["model"].update(dropout=0.5), "drops merges by chance"),
        # Added tokens that overlap: no part is unknown to fastokens, the ids differ.
        (lambda pipeline: add_tokens(pipeline, "<|a", "<|a|>", "a|>b", "|>"), "its ids differ for '"),
    ],
)
def test_a_tokenizer_on_which_fastokens_is_not_proven_equal_goes_without_it(
    tiny_model: Path, tmp_path: Path, change: Change, reason: str
) -> None:
    model = changed_model(tiny_model, tmp_path, change)
    with pytest.raises(InputError, match="fastokens cannot be used: ") as raised:
        ChatTokenizer(model, library="fastokens")
    assert reason in str(raised.value)
    tokenizer = ChatTokenizer(model)
    tokenizer.ids.decide(text_ids.FAST_FROM_CHARACTERS)
    assert tokenizer.ids.made_by.startswith("tokenizers ")
    assert reason in str(tokenizer.ids.reason)
    assert tokenizer.token_ids(["Hi"])[0].tolist() == tokenizer.hf("Hi")["input_ids"]


def test_without_the_package_the_choice_of_it_is_an_error(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "fastokens", None)
    with pytest.raises(InputError, match="fastokens cannot be used: it cannot be imported"):
        ChatTokenizer(str(tiny_model), library="fastokens")
    tokenizer = ChatTokenizer(str(tiny_model))
    tokenizer.ids.decide(text_ids.FAST_FROM_CHARACTERS)
    assert not tokenizer.ids.is_fast


def test_short_inputs_do_not_load_it_and_long_ones_do(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_ids, "FAST_FROM_CHARACTERS", 100)
    tokenizer = ChatTokenizer(str(tiny_model))
    tokenizer.token_ids(["x" * 99])
    assert not tokenizer.ids.is_fast
    tokenizer.token_ids(["x"])
    assert tokenizer.ids.is_fast
    told = ChatTokenizer(str(tiny_model))
    told.ids.decide(99)
    told.token_ids(["x" * 1000])
    assert not told.ids.is_fast


def test_ids_are_arrays_that_own_their_memory_also_after_pickling(tiny_model: Path) -> None:
    tokenizer = ChatTokenizer(str(tiny_model), library="fastokens")
    again = pickle.loads(pickle.dumps(tokenizer))
    again.ids.release()  # it is loaded again when it is called
    assert again.ids.is_fast
    for each in (tokenizer, again):
        ids = each.token_ids(["Hi", "", "you"])
        assert [one.tolist() for one in ids] == [
            one.tolist() for one in each.ids.by_tokenizers(["Hi", "", "you"])
        ]
        assert all(one.dtype == np.int32 and one.base is None for one in ids)


class Wrong:
    """fastokens that makes two tokens of one where a text holds a letter that no probe holds (Linear B)."""

    LETTER = "\U00010005"

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._fast_ids = tokenizer.ids._fast
        self.name = "fastokens 0"
        self.whole, *self.halves = tokenizer.hf.convert_tokens_to_ids(["ab", "a", "b"])

    def __call__(self, texts: list[str]) -> list[np.ndarray]:
        assert self._fast_ids is not None
        found = self._fast_ids(texts)
        return [
            self._wrong(ids) if self.LETTER in text else ids for text, ids in zip(texts, found, strict=True)
        ]

    def release(self) -> None:
        assert self._fast_ids is not None
        self._fast_ids.release()

    def _wrong(self, ids: np.ndarray) -> np.ndarray:
        pieces = (self.halves if i == self.whole else [i] for i in ids.tolist())
        return np.array([i for piece in pieces for i in piece], np.int32)


def add_merge(pipeline: dict[str, Any]) -> None:
    pipeline["model"]["vocab"]["ab"] = 256
    for token in pipeline["added_tokens"]:
        token["id"] += 1
    pipeline["model"]["merges"] = ["a b"]


@pytest.fixture
def merging_model(tiny_model: Path, tmp_path: Path) -> str:
    """The tiny model's tokenizer with a token "ab"."""
    (tmp_path / "model").mkdir()
    return changed_model(tiny_model, tmp_path / "model", add_merge)


def conversation(text: str) -> Conversation:
    return Conversation([{"role": "user", "content": text}, {"role": "assistant", "content": "Yes"}])


@pytest.mark.parametrize(("first_number", "right"), [(100, [True, False, True, False]), (99, [True] * 4)])
def test_the_first_difference_gives_it_up_and_all_that_follows_is_right(
    merging_model: str, first_number: int, right: list[bool]
) -> None:
    tokenizer = ChatTokenizer(merging_model, library="fastokens")
    tokenizer.ids._fast = Wrong(tokenizer)  # type: ignore[assignment]
    texts = ["ab", Wrong.LETTER + "ab", "cab", Wrong.LETTER + "abc"]
    conversations = [conversation(text) for text in texts]
    results = list(render_many(Renderer(tokenizer), conversations, first_number=first_number))
    reference = Renderer(ChatTokenizer(merging_model, library="tokenizers"), verify=Verify.FULL)
    found = [
        isinstance(tokens, RenderedTokens)
        and np.array_equal(tokens.token_ids, reference.render(each).token_ids)
        for tokens, each in zip(results, conversations, strict=True)
    ]
    assert found == right  # of these, number 100 alone is verified
    if all(right):
        assert tokenizer.ids.made_by.startswith("tokenizers ")
        assert tokenizer.ids.reason == (
            "fastokens was given up: its ids differ for conversation 101 of the input"
        )


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.slow
def test_a_run_writes_again_what_it_wrote_before_the_first_difference(
    merging_model: str, tmp_path: Path, workers: int
) -> None:
    records = [
        {"messages": conversation(f"{Wrong.LETTER}ab" if i in (20, 100) else f"{i}ab").messages}
        for i in range(120)
    ]
    source_file = tmp_path / "convs.jsonl"
    source_file.write_text(
        "".join(json.dumps({"messages": list(each["messages"])}) + "\n" for each in records)
    )

    def opened() -> Any:
        return open_source([str(source_file)], merging_model, part_bytes=1000, template_time="2026-01-01")

    wrong = opened()
    tokenizer = ChatTokenizer(merging_model, template=CHATML, library="fastokens")
    tokenizer.ids._fast = Wrong(tokenizer)  # type: ignore[assignment]
    wrong.renderer.tokenizer.ids = tokenizer.ids
    summary = render_source(wrong, tmp_path / "wrong", workers=workers)
    assert summary.n_conversations == 120
    assert summary.tokenizer is not None
    assert summary.tokenizer.startswith("tokenizers ")
    assert "given up" in str(summary.tokenizer_reason)
    render_source(opened(), tmp_path / "right", workers=1)
    parts = sorted(path.name for path in (tmp_path / "right" / "tokens").iterdir())
    assert len(parts) > 4
    for name in parts:
        wrote = [(tmp_path / side / "tokens" / name).read_bytes() for side in ("wrong", "right")]
        assert wrote[0] == wrote[1]
    manifests = [read_manifest(tmp_path / side) for side in ("wrong", "right")]
    assert manifests[0].plan_hash == manifests[1].plan_hash
