"""tokscore as a package: what notebooks and scripts see of it."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from html.parser import HTMLParser
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokscore
from tokscore import rendering, scoring
from tokscore.dataset.errors import ConversationError, TokscoreError, UsageError
from tokscore.rendering import Renderer, add_answer, continue_with, parse_conversation

RECORD = {"messages": [{"role": "user", "content": "Hi <b>&"}, {"role": "assistant", "content": "Yo é"}]}


@pytest.fixture(scope="module")
def renderer(tiny_model: Path) -> Renderer:
    return Renderer(tiny_model)


def test_the_package_says_what_it_has() -> None:
    assert tokscore.__version__ == version("tokscore")
    assert {"render", "score", "stats", "diff", "Renderer", "__version__"} <= set(dir(tokscore))
    assert "render(" in (tokscore.__doc__ or "")
    for package in (tokscore, rendering, scoring):
        assert set(package.__all__) <= set(dir(package))
        for name in package.__all__:
            assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = tokscore.nothing


def test_importing_it_loads_nothing_large() -> None:
    code = "import sys, tokscore; print([n for n in ('numpy', 'pyarrow', 'polars', 'torch') if n in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_a_renderer_takes_a_model_and_its_settings(tiny_model: Path, tmp_path: Path) -> None:
    template = tmp_path / "short.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    tokens = Renderer(str(tiny_model), template=template).render(RECORD)
    assert tokens.text == "Hi <b>&Yo é"


@pytest.mark.parametrize(
    "form",
    [
        lambda record: record,
        lambda record: __import__("json").dumps(record),
        lambda record: __import__("json").dumps(record).encode(),
        parse_conversation,
    ],
)
def test_a_record_may_have_any_form(renderer: Renderer, form: Callable[[Any], Any]) -> None:
    assert renderer.render(form(RECORD)) == renderer.render(parse_conversation(RECORD))


def test_labels_are_the_sampled_ids_in_an_array_of_their_own(renderer: Renderer) -> None:
    import torch

    tokens = renderer.render(RECORD)
    labels = tokens.labels()
    assert labels.dtype == np.int64
    np.testing.assert_array_equal(labels == -100, tokens.sampled_mask != 1)
    np.testing.assert_array_equal(
        labels[tokens.sampled_mask == 1], tokens.token_ids[tokens.sampled_mask == 1]
    )
    assert (tokens.labels(ignore=-1) == -1).sum() == (labels == -100).sum()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns of arrays that cannot be written
        torch.from_numpy(labels)[0] = 1


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.spans: list[tuple[str, str]] = []
        self._title: str | None = None
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self._title = dict(attrs).get("title")

    def handle_endtag(self, tag: str) -> None:
        self._title = None

    def handle_data(self, data: str) -> None:
        if self._title is not None:
            self.spans.append((self._title, data))


def test_notebooks_show_the_text_with_its_owners(renderer: Renderer) -> None:
    tokens = renderer.render(RECORD)
    page = _Text()
    page.feed(tokens._repr_html_())
    assert page.tags == {"div", "span"}
    assert (
        f">{len(tokens)} tokens, {(tokens.sampled_mask == 1).sum()} sampled, 2 messages<"
        in tokens._repr_html_()
    )
    assert ">1 token, 0 sampled, 2 messages<" in tokens[:1]._repr_html_()
    assert "".join(text for _, text in page.spans) == tokens.text
    contents = {title.split(",")[0]: text for title, text in page.spans if ", content, " in title}
    assert contents == {"message 0": "Hi <b>&", "message 1": "Yo é"}
    sampled = "".join(text for title, text in page.spans if ", sampled, " in title)
    assert sampled == "Yo é<|im_end|>"


@pytest.mark.slow
def test_notebooks_show_ids_where_there_is_no_text(tiny_scores: Path) -> None:
    (conversation,) = tokscore.Dataset(tiny_scores).conversations()
    page = _Text()
    page.feed(conversation.tokens._repr_html_())
    ids = [int(token) for _, text in page.spans for token in text.split()]
    assert ids == conversation.tokens.token_ids.tolist()


@pytest.mark.parametrize(
    "call",
    [
        lambda r: Renderer(5),
        lambda r: r.render(5),
        lambda r: r.render(RECORD["messages"]),
        lambda r: parse_conversation({"messages": object()}),
        lambda r: tokscore.render(5, "model"),
        lambda r: tokscore.render([5], "model"),
        lambda r: tokscore.render(RECORD, None),
        lambda r: tokscore.score(RECORD, r),
        lambda r: tokscore.stats({"logprob": [1.0]}),
        lambda r: tokscore.diff(None, None),
        lambda r: tokscore.Dataset(None),
        lambda r: tokscore.load_tokens(3),
        lambda r: tokscore.select("dataset", where=5),
        lambda r: tokscore.export("dataset", 5),
        lambda r: tokscore.export("dataset", "out", targets="other"),
        lambda r: continue_with(r, RECORD, r.render(RECORD), {"role": "user", "content": "y"}),
        lambda r: continue_with(r, RECORD, r.render(RECORD), "y"),
        lambda r: add_answer(r, RECORD, r.render(RECORD), {"role": "assistant", "content": "y"}, None),
    ],
)
def test_a_wrong_type_is_named(renderer: Renderer, call: Callable[[Renderer], object]) -> None:
    with pytest.raises(UsageError, match=r"expected|cannot be written"):
        call(renderer)


@pytest.mark.parametrize("message", [5, "y", {"content": "y"}, {"role": "user", "content": 5}])
def test_what_is_no_message_is_named(renderer: Renderer, message: Any) -> None:
    tokens = renderer.render(RECORD)
    with pytest.raises(ConversationError):
        continue_with(renderer, RECORD, tokens, [message])
    with pytest.raises(TokscoreError):
        add_answer(renderer, RECORD, tokens, message, [1])
