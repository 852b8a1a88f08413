"""The documentation says what the code does: written pages are current, and nothing is left out."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner

from tokscore import analytics
from tokscore.analytics.exact.moments import Moments
from tokscore.analytics.exact.summary import summarise
from tokscore.cli.app import app
from tokscore.cli.selfcheck import _document
from tokscore.dataset.choices import MessageForm
from tokscore.dataset.manifest import SETTINGS, ModelIdentity, read_manifest
from tokscore.dataset.tokens import CHANGES, MessageFlag
from tokscore.rendering.attribution import sampled
from tokscore.rendering.attribution.generation_tags import Policy
from tokscore.rendering.drift import DriftKind
from tokscore.rendering.messages.showing import NO_TOOLS_STATUS
from tokscore.rendering.reading.formats import FORMATS
from tokscore.rendering.reading.formats.anthropic import REDACTED_STATUS
from tokscore.rendering.reading.formats.openai_batch import IDS_UNUSED_STATUS
from tokscore.rendering.reading.formats.tau2_bench import NO_SYSTEM_STATUS
from tokscore.rendering.recorded_ids.attribute import (
    _NOT_RECORDED,
    MEDIA_STATUS,
    TEXT_STATUS,
    UNALIGNED_STATUS,
)
from tokscore.scoring import ENGINES, EngineSpec
from tokscore.scoring.agreement import Agreement
from tokscore.scoring.engines.model import ModelFiles
from tokscore.scoring.engines.settings import EnginePath, EngineSettings
from tokscore.scoring.selfcheck import Chosen, Line, NoiseFloor, SelfCheck

Run = Callable[..., "subprocess.CompletedProcess[str]"]
ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def scripts() -> Iterator[dict[str, ModuleType]]:
    """The modules in docs/."""
    names = ("page_text", "column_page", "command_pages", "generate")
    sys.path.insert(0, str(DOCS))
    try:
        yield {name: importlib.import_module(name) for name in names}
    finally:
        sys.path.remove(str(DOCS))


def test_the_written_pages_are_those_in_docs(
    scripts: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")  # they do not depend on the terminal
    pages = scripts["generate"].pages()
    assert {f"commands/{path.name}" for path in (DOCS / "commands").iterdir()} | {"columns.md"} == set(pages)
    old = [name for name, text in pages.items() if (DOCS / name).read_text(encoding="utf-8") != text]
    assert not old, f"{old} are not what the code says; run `python docs/generate.py` to update them"


def test_an_option_without_help_is_refused(
    scripts: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    undocumented = typer.Typer(rich_markup_mode=None, add_completion=False)

    @undocumented.command("count", epilog="Examples:\n\n\b\n  tokscore count\n")
    def count(limit: int = 3) -> None:
        """Count."""

    @undocumented.callback()
    def main() -> None:
        """Several commands."""

    monkeypatch.setattr(scripts["command_pages"], "app", undocumented)
    with pytest.raises(scripts["page_text"].UndocumentedError, match="--limit"):
        scripts["command_pages"].command_page("count")


@pytest.mark.parametrize("metadata", [None, {"description": ""}, {"description": "How far."}])
def test_a_column_without_description_or_unit_is_refused(
    scripts: dict[str, ModuleType], metadata: dict[str, str] | None
) -> None:
    schema = pa.schema([pa.field("distance", pa.float32(), metadata=metadata)])
    with pytest.raises(scripts["page_text"].UndocumentedError, match="distance"):
        list(scripts["column_page"]._schema(schema))


def test_a_field_that_a_docstring_leaves_out_is_refused(scripts: dict[str, ModuleType]) -> None:
    class Counts(NamedTuple):
        """Counts.

        Attributes:
            n_tokens: Of all.
        """

        n_tokens: int
        n_other: int

    with pytest.raises(scripts["page_text"].UndocumentedError, match="n_other"):
        list(scripts["column_page"]._described(Counts))


@pytest.mark.parametrize(("name", "call"), [("diff", analytics.diff), ("stats", analytics.stats)])
def test_options_that_a_function_lacks_are_listed(name: str, call: Callable[..., object]) -> None:
    command = inspect.signature(getattr(importlib.import_module(f"tokscore.cli.{name}"), name))
    lacking = set(command.parameters) - set(inspect.signature(call).parameters) - {"inputs", "form"}
    page = (DOCS / "python.md").read_text()
    assert {option for option in lacking if f"--{option.replace('_', '-')}`" not in page} == set()


@pytest.fixture(scope="module")
def documented(scripts: dict[str, ModuleType]) -> dict[str, set[str]]:
    """Names in docs/columns.md by table."""
    return {title: {row.name for row in rows} for title, _, rows in scripts["column_page"].sections()}


def test_what_diff_writes_is_documented(
    tiny_scores: Path, documented: dict[str, set[str]], tmp_path: Path
) -> None:
    alphas = ["--alpha", "0.25", "--alpha", "0.5"]
    for options in (["--sampled-by", "student", "-o", "all"], ["--align", "content", "-o", "content"]):
        options[-1] = str(tmp_path / options[-1])
        result = CliRunner().invoke(app, ["diff", str(tiny_scores), str(tiny_scores), *alphas, *options])
        assert result.exit_code == 0, result.output
    aligned = set(pq.read_schema(tmp_path / "content/tokens.parquet").names)
    assert "student_position" in documented["tokens.parquet of diff"] & aligned
    measures = r"^confidence\.(?:(?!\.(?:lower|upper|p_value|adjusted_p_value|n_conversations|is_rough)$).)+"
    for file, title in (("tokens", "tokens.parquet of diff"), ("groups", "groups.parquet of diff")):
        names = {
            re.sub(r"0\.2?5", "A", name) for name in pq.read_schema(tmp_path / f"all/{file}.parquet").names
        }
        names = {re.sub(measures, "confidence.MEASURE", name) for name in names}
        of_lists = {name for name in documented[title] if not name.startswith("exact.")}
        assert names - {"role"} == of_lists - {"role", "student_position"}


def test_every_field_of_a_dataset_is_documented_in_its_files(
    tiny_scores: Path, documented: dict[str, set[str]]
) -> None:
    for folder in ("scores", "spans", "messages", "conversations"):
        schema = pq.read_schema(tiny_scores / folder / "part-00000.parquet")
        assert all(field.metadata[b"description"] for field in schema)
        shared = documented["tokens/part-*.parquet"] if folder == "scores" else set()
        assert set(schema.names) == documented[f"{folder}/part-*.parquet"] | shared


def test_the_keys_of_a_manifest_are_documented(tiny_scores: Path, documented: dict[str, set[str]]) -> None:
    manifest = read_manifest(tiny_scores)
    # Templates that print the date have one more, and so have records that a map describes, and windows of text.
    chunks = {"chunk", "stride", "context"}
    assert set(SETTINGS) - set(manifest.settings) == {"template_time", "map", *chunks}
    assert set(manifest.settings) <= set(SETTINGS)
    # Only a dataset to which inputs were added had other plans.
    keys = {*json.loads(manifest.to_json()), "earlier_plans"}
    assert keys == {name for name in documented["manifest.json"] if "." not in name}


def test_the_keys_of_a_selfcheck_are_documented() -> None:
    agreement = Agreement(2, *[0.0] * 8)
    identity = ModelIdentity("model", None, None, 3, "float32", "vllm", "0")
    floor = NoiseFloor(0.0, 0.0, 0.0, agreement, agreement)
    found = SelfCheck(identity, identity, {}, 1, agreement, floor, True, [Line("max", 0.0, 1.0)])
    spec = EngineSpec(ModelFiles(Path(), "model", None, 3, 8, 8, "float32", 1), identity, EngineSettings())
    document = _document(found, Chosen([], [], 0, 0), spec)
    keys = {*document, *document["reference"], *agreement._asdict(), *floor._asdict(), *document["lines"][0]}
    page = (DOCS / "selfcheck.md").read_text(encoding="utf-8")
    assert not {key for key in keys if f"`{key}`" not in page}


def _links(page: Path) -> list[str]:
    text = _CODE.sub("", page.read_text(encoding="utf-8"))
    return [link for link in _LINK.findall(text) if "://" not in link]


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in _links(page):
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        assert target.exists(), f"{page.name} links to {link}"
        assert not anchor or anchor in _anchors(target), f"{page.name} links to {link}"


def test_every_page_is_linked_from_the_readme() -> None:
    linked = {(ROOT / link.partition("#")[0]).resolve() for link in _links(ROOT / "README.md")}
    assert {page.relative_to(ROOT) for page in PAGES[1:] if page not in linked} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_on_a_page_have_those_options(page: Path, scripts: dict[str, ModuleType]) -> None:
    commands = scripts["command_pages"]._group().commands
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    for line in re.findall(r"(?:^ {4}|^|`)(tokscore [^`\n]*)", text, re.MULTILINE):
        words = line.split("#")[0].split()
        if len(words) < 2 or words[1] not in commands:
            continue
        known = {name for each in commands[words[1]].params for name in each.opts} | {"--help"}
        used = {word.partition("=")[0] for word in words[2:] if re.match(r"--?[a-z]", word)}
        assert used <= known, line


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("attribution.md", [*MessageFlag, *Policy]),
        (
            "formats.md",
            [
                *FORMATS,
                *DriftKind,
                MEDIA_STATUS,
                UNALIGNED_STATUS,
                TEXT_STATUS,
                IDS_UNUSED_STATUS,
                NO_SYSTEM_STATUS,
                REDACTED_STATUS,
            ],
        ),
        ("messages.md", [*CHANGES, *MessageForm, NO_TOOLS_STATUS]),
        ("scoring.md", [*ENGINES, *EnginePath]),
    ],
)
def test_a_page_names_every_value_of_what_it_explains(page: str, names: list[str]) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    assert not {str(name) for name in names if f"`{name}`" not in text}


def test_every_reason_for_unknown_tokens_is_explained() -> None:
    reasons = [value for name, value in vars(sampled).items() if name.isupper() and isinstance(value, str)]
    assert len(reasons) == 6
    text = (DOCS / "attribution.md").read_text(encoding="utf-8")
    assert not {reason for reason in [*reasons, _NOT_RECORDED] if f"| {reason} |" not in text}


@pytest.mark.model
@pytest.mark.parametrize(
    ("page", "command"), [("README.md", "render"), ("docs/tour.md", "render"), ("docs/tour.md", "drift")]
)
def test_a_page_shows_what_the_commands_print(
    page: str, command: str, tokscore: Run, teacher_model: Path, tmp_path: Path
) -> None:
    """The examples that need no scores; shortened outputs, so every line has to be in the whole one."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.search(
        rf"^ {{4}}tokscore ({command} [^\n]*)\n\n```\n(.*?)^```", text, re.DOTALL | re.MULTILINE
    )
    assert found is not None
    places = {"MODEL": str(teacher_model), "tokens": str(tmp_path / "tokens")}
    finished = tokscore(*(places.get(word, word) for word in found[1].split()), cwd=ROOT)
    assert finished.returncode == 0, finished.stderr
    printed = {line.strip() for line in finished.stdout.splitlines()}
    assert {line.strip() for line in found[2].splitlines()} <= printed


def _figures(text: str) -> dict[str, list[float]]:
    """The rows of tables by their titles."""
    rows = (re.split(r"\s{2,}", line.strip()) for line in text.splitlines() if re.search(r"\s{2,}-?\d", line))
    return {title: [float(cell.replace(",", "")) for cell in cells if cell != "-"] for title, *cells in rows}


def test_the_page_about_quantised_models_has_every_figure() -> None:
    page = (DOCS / "quantised.md").read_text(encoding="utf-8").split("```")[1]
    zeros: Mapping[Any, float] = defaultdict(float)
    summary = summarise(Moments(1, 1, zeros, zeros, zeros), lambda _measure: [np.zeros(1)])
    assert list(_figures(page)) == [figure.title for figure in summary.figures]
    for figure in summary.figures:
        assert len(_figures(page)[figure.title]) == (1 if figure.se_tokens is None else 3)


@pytest.mark.slow
@pytest.mark.model
def test_the_page_about_quantised_models_shows_what_the_command_prints(
    tokscore: Run, teacher_model: Path, student_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs both models twice over 8,290 tokens; the last digits differ from machine to machine."""
    monkeypatch.setenv("TOKSCORE_CACHE", str(tmp_path))
    page = (DOCS / "quantised.md").read_text(encoding="utf-8")
    found = re.search(r"^ {4}tokscore ([^\n]*)\n", page, re.MULTILINE)
    assert found is not None
    places = {"BASE": str(teacher_model), "QUANT": str(student_model)}
    finished = tokscore(*(places.get(word, word) for word in found[1].split()), cwd=ROOT)
    assert finished.returncode == 0, finished.stderr
    printed, shown = _figures(finished.stdout), _figures(page.split("```")[1])
    assert printed.keys() == shown.keys()
    for title, values in shown.items():
        assert printed[title] == pytest.approx(values, rel=2e-3, abs=2e-3), title


@pytest.mark.model
@pytest.mark.slow
def test_the_page_about_mismatch_shows_what_the_commands_print(
    tokscore: Run, teacher_model: Path, tmp_path: Path
) -> None:
    """In bfloat16 the numbers differ from processor to processor, those of float32 do not."""
    page = (DOCS / "mismatch.md").read_text(encoding="utf-8")
    places = {"MODEL": str(teacher_model), "scores": str(tmp_path / "scores")}
    printed = []
    for command in re.findall(r"^ {4}tokscore (.*(?:examples|--by).*)\n", page, re.MULTILINE):
        finished = tokscore(*(places.get(word, word) for word in command.split()), cwd=ROOT)
        assert finished.returncode == 0, finished.stderr
        printed.append(_rows(finished.stdout))
    shown = [_rows(table) for table in re.findall(r"```\n(  .*?)```", page, re.DOTALL)]
    assert len(printed) == 3
    for found, expected in zip(printed[1:], shown, strict=True):
        assert found[0] == expected[0]
        assert len(found) == len(expected)
    for found, expected in zip(printed[1][1:], shown[0][1:], strict=True):
        row, wanted = (
            dict(zip(shown[0][0], found, strict=True)),
            dict(zip(shown[0][0], expected, strict=True)),
        )
        for name in ("answer_position", "tokens", "sampled", "recorded"):
            assert row[name] == wanted[name]
        # Each processor rounds by itself, so that a token's ratio may be any of this size, of either sign.
        allowed = max(0.1, 2 * float(wanted["mean |log-ratio|"]))
        for name in ("KL, k1", "KL, k3", "log-ratio", "mean |log-ratio|", "scored"):
            assert float(row[name]) == pytest.approx(float(wanted[name]), abs=allowed)
    gaps = [float(row[shown[1][0].index("mean |log-ratio|")]) for row in printed[2][1:-1]]
    assert gaps == sorted(gaps, reverse=True)


def _rows(table: str) -> list[list[str]]:
    """The cells of the head and of the rows; a total has one label less than there are columns."""
    return [
        re.split(r"\s{2,}", line.strip()) for line in table.splitlines() if line.strip() and "──" not in line
    ]
