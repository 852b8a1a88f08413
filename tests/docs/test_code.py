"""The code on pages about the Python API runs from top to bottom and prints what the page shows."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokscore.rendering import ChatTokenizer, RenderedTokens, Renderer

pytestmark = pytest.mark.model
ROOT = Path(__file__).parents[2]
MODEL = "smollm2-135m-instruct"
_BLOCK = re.compile(r"^```(python)?\n(.*?)^```\n", re.MULTILINE | re.DOTALL)

Names = dict[str, Any]  # of a script
RunPage = Callable[[str], Names]


@pytest.fixture(scope="module")
def run_page(teacher_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunPage]:
    """Run the code of a page beside the model; its names, and what each block printed."""
    folder = tmp_path_factory.mktemp("page")
    for name in (MODEL, "MODEL"):
        (folder / name).symlink_to(teacher_model)
    pages: dict[str, Names] = {}

    def run(page: str) -> Names:
        if page not in pages:
            pages[page] = names = {"printed": []}
            for language, text in _BLOCK.findall((ROOT / page).read_text(encoding="utf-8")):
                if language:
                    printed = io.StringIO()
                    with contextlib.redirect_stdout(printed):
                        exec(compile(text, page, "exec", dont_inherit=True), names)
                    names["printed"].append(printed.getvalue())
        return pages[page]

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield run


def rounded(text: str) -> str:
    """Numbers that differ in the last digits from machine to machine, cut to one decimal."""
    return re.sub(r"-?\d+\.\d{2,}", lambda found: f"{float(found[0]):.1f}", text)


@pytest.mark.parametrize("page", ["docs/training.md", "docs/incremental.md"])
@pytest.mark.slow
def test_the_code_of_a_page_prints_what_it_shows(page: str, run_page: RunPage) -> None:
    blocks = _BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))
    shown = [text for language, text in blocks if not language]
    printed = [text for text in run_page(page)["printed"] if text]
    assert len(shown) > 3
    assert [rounded(text) for text in printed] == [rounded(text) for text in shown]


def test_the_code_of_the_readme_runs(run_page: RunPage) -> None:
    scores = run_page("README.md")["scores"]
    assert scores.columns == ["position", "role", "logprob"]
    assert scores["logprob"].null_count() == 1


FORGETFUL = """{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.role != 'assistant' or loop.last %}{{ m.content }}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


@pytest.mark.slow
def test_a_rollout_that_is_rendered_again_has_every_target_once(
    run_page: RunPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The roll_out of the page, with a template that drops earlier answers."""
    names = run_page("docs/training.md")
    sampled: list[list[int]] = []

    def sample(prompt_ids: np.ndarray[Any, Any]) -> list[int]:
        sampled.append(sample_of_the_page(prompt_ids))
        return sampled[-1]

    sample_of_the_page = names["sample"]
    monkeypatch.setitem(names, "sample", sample)
    renderer = Renderer(ChatTokenizer(MODEL, template=FORGETFUL), add_generation_prompt=True)
    monkeypatch.setitem(names, "renderer", renderer)
    rollouts: list[RenderedTokens] = names["roll_out"](["Name a colour.", "Another one.", "One more."])
    assert len(rollouts) > 1
    targets = [token for tokens in rollouts for token in tokens.token_ids[tokens.sampled_mask == 1].tolist()]
    assert targets == [token for answer in sampled for token in answer]
