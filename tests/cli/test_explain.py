from __future__ import annotations

import csv
import io
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tokscore.cli.options.shared import By
from tokscore.cli.printing.explain import print_explanation
from tokscore.cli.printing.output_format import Format
from tokscore.cli.render import print_summary
from tokscore.cli.stats import print_stats
from tokscore.dataset.reading import Dataset
from tokscore.rendering import ChatTokenizer, Renderer, open_source
from tokscore.rendering.explain import explain
from tokscore.rendering.reading.plan import plan_files
from tokscore.rendering.run import render_source
from tokscore.rendering.source import ConversationSource

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Write = Callable[..., Path]

RECORD = {
    "id": "a",
    "messages": [
        {"role": "user", "content": "x <|im_end|>\n你·"},
        {"role": "assistant", "content": "Yo"},
    ],
}
EXPECTED = """\
a  convs.jsonl:2  32 tokens, 3 sampled, 11 content, status ok

message 0  user  17 tokens, 0 sampled, 9 content
        flags: control_tokens_in_content
      0 --  template           <|im_start|>
      1 --  role               u│s│e│r
      5 --  template           ↵
      6 -C  content            x│·
      8 -C! content            <|im_end|>
      9 -C  content            ↵
     10 -C  content            你│…│…│\\u{b7}│…
     15 --  template           <|im_end|>│↵

message 1  assistant  15 tokens, 3 sampled, 2 content
     17 --  template           <|im_start|>
     18 --  role               a│s│s│i│s│t│a│n│t
     27 --  template           ↵
     28 SC  content            Y│o
     30 S-  template           <|im_end|>
     31 --  template           ↵
"""


@pytest.fixture
def arguments(tiny_model: Path, write_jsonl: Write, conversation: dict[str, object]) -> tuple[object, ...]:
    return ("render", write_jsonl(conversation, RECORD), "-m", tiny_model, "--explain")


def test_every_token_is_printed_with_its_owner(tokscore: Run, arguments: tuple[str, ...]) -> None:
    shown = tokscore(*arguments, "a")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout == EXPECTED
    assert "S sampled" in shown.stderr


def test_nothing_is_written(tokscore: Run, arguments: tuple[str, ...], tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    assert tokscore(*arguments, "a", cwd=tmp_path).returncode == 0
    assert sorted(tmp_path.iterdir()) == before


def test_json_and_csv_hold_a_row_a_token(tokscore: Run, arguments: tuple[str, ...]) -> None:
    printed = json.loads(tokscore(*arguments, "a", "--format", "json").stdout)
    assert "".join(token["text"] for token in printed["tokens"]).startswith(
        "<|im_start|>user\nx <|im_end|>\n你·"
    )
    assert [token["position"] for token in printed["tokens"] if token["is_control"]] == [8]
    rows = list(csv.DictReader(io.StringIO(tokscore(*arguments, "a", "--format", "csv").stdout)))
    assert [row["text"] for row in rows] == [token["text"] for token in printed["tokens"]]


def test_all_branches_are_shown(tokscore: Run, tiny_model: Path, write_jsonl: Write) -> None:
    answers = {key: [{"role": "assistant", "content": key}] for key in ("chosen", "rejected")}
    path = write_jsonl({"id": "p", "prompt": [{"role": "user", "content": "Hi"}], **answers})
    shown = tokscore("render", path, "-m", tiny_model, "--explain", "p")
    assert shown.returncode == 0, shown.stderr
    first, second = shown.stdout.split("\n\np branch 1 of 2  convs.jsonl:1  ")
    assert first.startswith("p branch 0 of 2  convs.jsonl:1  29 tokens, 7 sampled")
    assert "c│h│o│s│e│n" in first
    assert "r│e│j│e│c│t│e│d" in second
    assert shown.stderr.count("S sampled") == 1
    printed = json.loads(
        tokscore("render", path, "-m", tiny_model, "--explain", "p", "--format", "json").stdout
    )
    assert [each["branch"] for each in printed["branches"]] == [0, 1]
    lengths = [sum(token["branch"] == i for token in printed["tokens"]) for i in (0, 1)]
    assert [each["n_tokens"] for each in printed["branches"]] == lengths


def test_tables_by_message_name_the_branch_where_there_are_several(
    tiny_model: Path, write_jsonl: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = {key: [{"role": "assistant", "content": key}] for key in ("chosen", "rejected")}
    preference = {"id": "p", "prompt": [{"role": "user", "content": "Hi"}], **answers}
    out = tmp_path / "out"
    render_source(open_source([str(write_jsonl(preference))], str(tiny_model)), out)
    print_summary(Dataset(out), Format.TABLE, By.MESSAGE)
    rows = [line.split()[:4] for line in capsys.readouterr().out.splitlines() if line.startswith("  p ")]
    assert [row[1:] for row in rows] == [
        ["0", "0", "user"],
        ["0", "1", "assistant"],
        ["1", "0", "user"],
        ["1", "1", "assistant"],
    ]
    print_stats(out, "message_index", Format.CSV)
    assert "1 conversation with several branches" in capsys.readouterr().err
    print_stats(out, "branch,message_index", Format.CSV)
    printed = capsys.readouterr()
    assert "several branches" not in printed.err
    groups = [row["group"] for row in csv.DictReader(io.StringIO(printed.out))]
    assert groups == ["0, 0", "0, 1", "1, 0", "1, 1", "(all)"]
    del preference["rejected"], preference["chosen"]
    render_source(open_source([str(write_jsonl(preference))], str(tiny_model)), tmp_path / "one")
    print_summary(Dataset(tmp_path / "one"), Format.TABLE, By.MESSAGE)
    assert "branch" not in capsys.readouterr().out


def test_an_unknown_id_is_bad_input_and_names_close_ones(tokscore: Run, arguments: tuple[str, ...]) -> None:
    shown = tokscore(*arguments, "greetings")
    assert shown.returncode == 3
    assert "no conversation has the id greetings; there are 2, such as greeting" in shown.stderr


def test_render_without_a_directory_is_wrong_usage(tokscore: Run, arguments: tuple[str, ...]) -> None:
    shown = tokscore(*arguments[:-1])
    assert shown.returncode == 2
    assert "give -o DIR, or --explain ID" in shown.stderr


def test_a_cut_conversation_shows_what_is_kept(tokscore: Run, arguments: tuple[str, ...]) -> None:
    shown = tokscore(*arguments, "a", "--max-tokens", 4, "--truncate", "left")
    assert "4 tokens, 3 sampled, 2 content, status truncated_left" in shown.stdout
    assert "      0 SC  content            Y│o\n" in shown.stdout


def test_an_unknown_mask_is_shown_with_its_reason(
    tokscore: Run, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "t.jinja").write_text("{% for m in messages %}<{{ m.content[1:] }}{% endfor %}")
    shown = tokscore(*arguments, "a", "--template", tmp_path / "t.jinja").stdout
    assert "sampled unknown: " in shown
    assert "?C  content            o\n" in shown
    assert "dropped: 1 character of its text" in shown


@pytest.mark.parametrize("no_color", ["", "1"])
def test_a_terminal_gets_colours_unless_they_are_refused(arguments: tuple[str, ...], no_color: str) -> None:
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "NO_COLOR": no_color, "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "tokscore.cli.main", *map(str, arguments), "a"]
    with subprocess.Popen(command, stdout=follower, stderr=subprocess.DEVNULL, env=environment) as running:
        os.close(follower)
        shown = ""
        with suppress(OSError):  # the other end is closed
            while piece := os.read(leader, 2**16):
                shown += piece.decode(errors="replace")
    os.close(leader)
    assert running.returncode == 0
    assert ("\x1b[36m" in shown or ";36m" in shown) is not bool(no_color)
    assert "SC  content" in shown


def test_the_first_difference_from_transformers_is_marked(
    tiny_model: Path, write_jsonl: Write, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = ChatTokenizer(str(tiny_model))
    theirs = tokenizer.hf.apply_chat_template
    monkeypatch.setattr(
        tokenizer.hf, "apply_chat_template", lambda *a, **k: theirs(*a, **k).replace("Yo", "Yes")
    )
    path = write_jsonl(RECORD)
    source = ConversationSource(plan_files([str(path)]), Renderer(tokenizer))
    (explanation,) = explain(source, "a")
    assert explanation.difference is not None
    assert "'o<|im_end|>\\n' here, 'es<|im_end|>\\n' there" in explanation.difference.reason
    assert explanation.texts[explanation.different_token or 0] == "o"
    print_explanation([explanation], Format.TABLE)
    shown = capsys.readouterr().out
    assert "content            Y\n        ≠ first difference from transformers\n" in shown
