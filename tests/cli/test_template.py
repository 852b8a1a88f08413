"""`tokscore template`: what a template does, before anybody spends a GPU on it."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

from tests.conftest import CHATML, RunTokscore

REFUSING = (
    "{% for m in messages %}{% if m.role not in ['user', 'assistant'] %}{{ raise_exception('no ' ~ m.role) }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
OWN_OPENER = (
    "{% for m in messages %}<|im_start|>{{ 'ai' if m.role == 'assistant' else m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>bot\n{% endif %}"
)


def findings(tokscore: RunTokscore, *arguments: str | Path) -> dict[tuple[str, str], dict[str, Any]]:
    finished = tokscore("template", *arguments, "--format", "json")
    assert finished.returncode == 0, finished.stderr
    return {(row["subject"], row["name"]): row for row in json.loads(finished.stdout)}


def test_a_model_s_own_template_is_reported(tokscore: RunTokscore, tiny_model: Path) -> None:
    found = findings(tokscore, tiny_model)
    assert found["role", "system"]["finding"] == "taken"
    assert found["prompt", "behind user"]["finding"] == r"<|im_start|>assistant\n"
    assert "without a generation prompt" in found["prompt", "behind user"]["how"]
    assert found["header", "assistant"]["finding"] == r"<|im_start|>assistant\n"
    assert found["stop", "two turns"]["finding"] == "<|im_end|>"
    assert found["append-only", "two turns"]["finding"] == "yes"
    assert found["tags", "generation"]["finding"] == "none"
    assert "reasoning" in {name for subject, name in found if subject == "drops"}
    assert "sampled" in found["shape", "one answer"]["finding"]


def test_a_template_file_needs_a_model(tokscore: RunTokscore, tmp_path: Path, tiny_model: Path) -> None:
    path = tmp_path / "own.jinja"
    path.write_text(REFUSING)
    alone = tokscore("template", path)
    assert alone.returncode == 2
    assert "-m MODEL" in alone.stderr
    found = findings(tokscore, path, "-m", tiny_model)
    assert found["role", "system"]["finding"] == "refused"
    assert "no system" in found["role", "system"]["how"]
    assert found["shape", "system"]["finding"] == "refused"


def test_what_cannot_be_told_is_said_with_its_reason(
    tokscore: RunTokscore, tmp_path: Path, tiny_model: Path
) -> None:
    path = tmp_path / "own.jinja"
    path.write_text(OWN_OPENER)
    finished = tokscore("template", path, "-m", tiny_model, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(finished.stdout)))
    shape = next(row for row in rows if (row["subject"], row["name"]) == ("shape", "one answer"))
    assert "unknown" in shape["finding"]
    assert "no generation prompt supplies" in shape["how"]
    assert "cannot be told" in finished.stderr


def test_the_table_has_the_same(tokscore: RunTokscore, tmp_path: Path, tiny_model: Path) -> None:
    path = tmp_path / "own.jinja"
    path.write_text(CHATML)
    finished = tokscore("template", path, "-m", tiny_model)
    assert finished.returncode == 0, finished.stderr
    assert "append-only" in finished.stdout
    assert "<|im_start|>assistant" in finished.stdout
