"""Every input format from outside: rendered, scored, written as `tokens` and read again."""

from __future__ import annotations

import json
import subprocess
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner, Result

from tokscore.cli.app import app
from tokscore.dataset.choices import OnError
from tokscore.dataset.errors import InputError
from tokscore.dataset.reading import Dataset
from tokscore.dataset.tokens import RenderedConversation
from tokscore.rendering import ConversationError, open_source
from tokscore.rendering.drift import Drift, NotRecorded, drift
from tokscore.rendering.reading.formats import FORMATS, load_format
from tokscore.rendering.reading.formats.tokens import tokens_record
from tokscore.rendering.run import render_source
from tokscore.rendering.source import ConversationSource
from tokscore.scoring import plan_engine
from tokscore.scoring.run import score

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Write = Callable[..., Path]
FIXTURES = Path(__file__).parents[1] / "data" / "formats"
# Files of each format; of a batch, requests and answers.
FILES = {
    "alpaca": ["alpaca.json"],
    "anthropic": ["anthropic.jsonl"],
    "atif": ["atif.json", "atif_ids.jsonl"],
    "atropos": ["atropos.jsonl"],
    "inspect": ["inspect.eval", "inspect.json"],
    "langfuse": ["langfuse.jsonl", "langfuse_page.json"],
    "nemo-rl": ["nemo_rl.jsonl"],
    "openai": ["openai.jsonl", "openai_text.jsonl"],
    "openai-batch": ["openai_batch_requests.jsonl", "openai_batch_outputs.jsonl"],
    "openai-responses": ["responses.jsonl"],
    "openhands": ["openhands.jsonl"],
    "otel": ["otel.jsonl", "otel_spans.jsonl"],
    "prime-rl": ["prime_rl.jsonl"],
    "sharegpt": ["sharegpt.jsonl"],
    "swe-agent": ["swe_agent.traj", "swe_agent_two_agents.traj"],
    "tau-bench": ["tau_bench.json"],
    "tau2-bench": ["tau2_bench.json"],
    "text": ["text.jsonl"],
    "text-dump": ["text_dump.jsonl"],
    "tokens": ["tokens.jsonl"],
    "trl": ["trl.jsonl"],
    "verifiers": ["verifiers.jsonl"],
    "verifiers-results": ["verifiers_results.jsonl"],
    "xlam": ["xlam.json"],
}
WITHOUT_TEXT = {"prime-rl", "nemo-rl"}  # which have no messages beside their ids
COMPARED = [
    "conversation_id",
    "branch",
    "position",
    "token_id",
    "message_index",
    "role",
    "is_content",
    "is_sampled",
    "position_in_message",
    "recorded_logprob",
]


def branches(root: Path) -> Iterator[list[RenderedConversation]]:
    """The conversations of a dataset, the branches of each together."""
    dataset, together = Dataset(root), list[RenderedConversation]()
    for part in dataset.manifest.parts:
        for conversation in dataset.read_part(part.index):
            if together and together[-1].row.conversation_id != conversation.row.conversation_id:
                yield together
                together = []
            together.append(conversation)
    yield together


def rendered(files: list[Path], model: Path, out: Path) -> Path:
    render_source(open_source([str(file) for file in files], str(model)), out, on_error=OnError.SKIP)
    return out


def tokens_of(root: Path) -> pl.DataFrame:
    return pl.read_parquet(root / "tokens/*.parquet").select(COMPARED)


def test_every_format_has_files_here() -> None:
    assert sorted(FILES) == sorted(FORMATS)


@pytest.mark.parametrize("name", FILES)
def test_a_format_is_found_rendered_and_given_back_by_the_format_tokens(
    tiny_model: Path, tmp_path: Path, name: str
) -> None:
    out = rendered([FIXTURES / file for file in FILES[name]], tiny_model, tmp_path / "out")
    settings = json.loads((out / "manifest.json").read_text())["settings"]
    assert settings["input_format"] == name
    first = tokens_of(out)
    assert first.height > 0
    carries = load_format(name)
    assert first["recorded_logprob"].is_not_null().any() == carries.has_logprobs
    assert (first["branch"].max() != 0) == carries.has_branches

    lines = [
        json.dumps(tokens_record(each[0].row.conversation_id, [branch.tokens for branch in each]))
        for each in branches(out)
    ]
    (tmp_path / "again.jsonl").write_text("".join(line + "\n" for line in lines))
    again = rendered([tmp_path / "again.jsonl"], tiny_model, tmp_path / "again")
    assert tokens_of(again).equals(first)


@pytest.mark.parametrize("name", FILES)
def test_a_format_is_scored_beside_its_recorded_logprobs(tiny_model: Path, tmp_path: Path, name: str) -> None:
    source = open_source([str(FIXTURES / file) for file in FILES[name]], str(tiny_model))
    spec = plan_engine(str(tiny_model), engine="transformers", top_k=2)
    summary = score(source, tmp_path, spec, on_error=OnError.SKIP)
    scores = pl.read_parquet(tmp_path / "scores/*.parquet")
    assert scores.height == summary.n_tokens > 0
    assert scores.filter(pl.col("position") > 0)["logprob"].null_count() == 0
    assert scores["recorded_logprob"].is_not_null().any() == load_format(name).has_logprobs
    # Branches begin alike, and one that is the beginning of another is not scored again.
    assert summary.n_engine_tokens <= summary.n_tokens


@pytest.mark.parametrize("name", sorted({*FILES} - {"text"}))  # which has no turns: see test_text.py
def test_every_command_takes_every_format(tiny_model: Path, tmp_path: Path, name: str) -> None:
    files = [str(FIXTURES / file) for file in FILES[name]]

    def command(*arguments: str) -> Result:
        return CliRunner().invoke(app, [*arguments, "--format", "json"])

    counted = command("stats", *files, "--limit", "max_turns=1")
    assert counted.exit_code == 0, counted.output
    assert json.loads(counted.stdout)
    out = str(tmp_path / "scores")
    planned = command(
        *("logprobs", *files, "-m", str(tiny_model), "-o", out, "--dry-run"),
        *("--on-error", "skip", "--engine", "transformers"),
    )
    assert planned.exit_code == 0, planned.output
    assert json.loads(planned.stdout)["n_logical_tokens"] > 0
    compared = command("drift", *files, "-m", str(tiny_model), "--on-error", "skip")
    if load_format(name).has_ids and name not in WITHOUT_TEXT:
        assert compared.exit_code == 0, compared.output
        assert json.loads(compared.stdout)["drifted"] is not None
    else:
        assert isinstance(compared.exception, InputError)
        lacking = "no text of its messages" if name in WITHOUT_TEXT else "without recorded token ids"
        assert lacking in f"{compared.exception} {compared.output}"


def test_recorded_ids_are_scored_from_outside(tokscore: Run, tiny_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "scores"
    files = [FIXTURES / file for file in FILES["verifiers"]]
    finished = tokscore("logprobs", *files, "-m", tiny_model, "-o", out, "--engine", "transformers")
    assert finished.returncode == 0, finished.stderr
    stats = tokscore("stats", out, "--limit", "output=1", "--format", "json")
    assert stats.returncode == 0, stats.stderr


def test_metadata_of_a_record_is_kept(tiny_model: Path, tmp_path: Path) -> None:
    out = rendered([FIXTURES / "atropos.jsonl"], tiny_model, tmp_path / "out")
    rows = pl.read_parquet(out / "conversations/*.parquet")
    assert all("scores" in json.loads(text) for text in rows["metadata"])


def test_the_formats_are_listed(tokscore: Run) -> None:
    listed = json.loads(tokscore("formats", "--format", "json").stdout)
    assert [row["name"] for row in listed] == list(FORMATS)
    assert all(isinstance(json.loads(row["example"]), dict) for row in listed)
    table = tokscore("formats").stdout
    assert all(name in table for name in FORMATS)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def node(parent: int | None, ids: list[int] | None, **more: Any) -> dict[str, Any]:
    given = {} if ids is None else {"token_ids": ids, "mask": [False] * len(ids)}
    return {"parent": parent, "sampled": False, "message": user("Hi"), **given, **more}


GOOD = {"id": "good", "nodes": [node(None, [1, 2])]}
BAD_RECORDS = {
    "ids on some nodes": (
        {"nodes": [node(None, [1]), node(0, None)]},
        "$.nodes[1].token_ids missing ids on some nodes",
    ),
    "parent ahead": (
        {"nodes": [node(None, [1]), node(2, [1]), node(0, [1])]},
        "$.nodes[1].parent is 2, a later node; expected an earlier node (0 to 0) or null.",
    ),
    "parent itself": (
        {"nodes": [node(None, [1]), node(1, [1])]},
        "$.nodes[1].parent is 1, the node itself; expected an earlier node (0 to 0) or null.",
    ),
    "mask of another length": (
        {"nodes": [node(None, [1, 2], mask=[True])]},
        "$.nodes[0].mask has 1 value for 2 token ids.",
    ),
    "logprobs that do not fit the mask": (
        {"nodes": [node(None, [1, 2], mask=[True, False], logprobs=[-1.0, -2.0])]},
        "$.nodes[0].logprobs has 2 values; the mask holds true 1 time.",
    ),
    "no such id": (
        {"nodes": [node(None, [1]), node(0, [2, 9999])]},
        "$.nodes[1].token_ids[1] is the token id 9999; expected 0 to 258, as tiny has.",
    ),
    "another format": (
        {"conversations": [{"from": "human", "value": "Hi"}]},
        "looks like the format sharegpt, and the records before it like verifiers; expected one format a run.",
    ),
    "cut in the middle": ('{"nodes": [{"parent": nu', "is not JSON"),
}


@pytest.mark.parametrize("case", BAD_RECORDS)
def test_a_bad_record_names_its_place_and_costs_no_other(
    tiny_model: Path, write_jsonl: Write, tmp_path: Path, case: str
) -> None:
    record, message = BAD_RECORDS[case]
    path = write_jsonl(GOOD, record, {**GOOD, "id": "also good"})
    with pytest.raises(ConversationError) as failed:
        render_source(open_source(str(path), str(tiny_model)), tmp_path / "failed")
    assert str(failed.value).startswith(f"convs.jsonl:2: {message}")
    out = rendered([path], tiny_model, tmp_path / "out")
    ids = tokens_of(out)["conversation_id"].unique(maintain_order=True)
    assert ids.to_list() == ["good", "also good"]
    (error,) = (out / "errors/part-00000.jsonl").read_text().splitlines()
    assert json.loads(error)["source_line"] == 2


def test_a_bad_record_is_bad_input_of_the_command(
    tokscore: Run, tiny_model: Path, write_jsonl: Write, tmp_path: Path
) -> None:
    record, message = BAD_RECORDS["parent ahead"]
    failed = tokscore("render", write_jsonl(GOOD, record), "-m", tiny_model, "-o", tmp_path / "out")
    assert failed.returncode == 3
    assert f"convs.jsonl:2: {message}" in failed.stderr


@pytest.mark.slow
def test_all_bad_records_of_a_file_are_listed_by_the_commands(
    tokscore: Run, tiny_model: Path, tmp_path: Path
) -> None:
    good = json.dumps(GOOD).encode()
    bad = {
        i: (record if isinstance(record, str) else json.dumps(record), message)
        for i, (record, message) in enumerate(BAD_RECORDS.values(), 2)
    }
    damaged = max(bad) + 1
    path = tmp_path / "convs.jsonl"
    path.write_bytes(
        b"\n".join(
            [good, *(record.encode() for record, _ in bad.values()), good.replace(b"good", b"g\xff"), good]
        )
    )
    said = {line: message for line, (_, message) in bad.items()} | {damaged: "is not UTF-8: byte"}
    arguments = (path, "-m", tiny_model, "--on-error", "skip")
    finished = tokscore("render", *arguments, "-o", tmp_path / "out")
    assert finished.returncode == 0, finished.stderr
    assert "warning: 1 conversation had an id that was taken: good is now good#2." in finished.stderr
    assert f"{len(said)} conversations failed, listed in" in finished.stderr
    assert tokens_of(tmp_path / "out")["conversation_id"].unique(maintain_order=True).to_list() == [
        "good",
        "good#2",
    ]
    rows = map(json.loads, (tmp_path / "out/errors/part-00000.jsonl").read_text().splitlines())
    listed = {
        row["source_line"]: row["reason"] if row["path"] == "$" else f"{row['path']} {row['reason']}"
        for row in rows
    }
    assert listed.keys() == said.keys()
    drifted = tokscore("drift", *arguments)
    for line, message in said.items():
        assert listed[line].startswith(message)
        assert f"skipped: convs.jsonl:{line}: {message}" in drifted.stderr
    # Without a model nothing says which ids there are.
    counted = json.loads(tokscore("stats", path, "--format", "json").stdout)
    assert (counted["n_conversations"], counted["n_errors"]) == (3, len(said) - 1)


def test_a_tail_of_three_cut_lines_costs_no_other(tokscore: Run, tiny_model: Path, tmp_path: Path) -> None:
    """As writers leave it that were killed in the middle of their lines."""
    good = json.dumps(GOOD)
    path = tmp_path / "convs.jsonl"
    path.write_text("\n".join([good, good, good[:-1], good[: good.index("Hi") + 1], good[:2]]))
    arguments = ("render", path, "-m", tiny_model, "-o", tmp_path / "out")
    failed = tokscore(*arguments)
    assert failed.returncode == 3
    assert "convs.jsonl:3: is not JSON: Input data was truncated; expected one JSON object" in failed.stderr
    finished = tokscore(*arguments, "--on-error", "skip")
    assert finished.returncode == 0, finished.stderr
    assert tokens_of(tmp_path / "out")["conversation_id"].n_unique() == 2
    rows = [json.loads(row) for row in (tmp_path / "out/errors/part-00000.jsonl").read_text().splitlines()]
    assert [(row["source_file"], row["source_line"], row["path"]) for row in rows] == [
        ("convs.jsonl", line, "$") for line in (3, 4, 5)
    ]


@pytest.mark.slow
def test_a_compressed_file_that_is_cut_costs_what_is_behind_the_cut(
    tokscore: Run, tiny_model: Path, tmp_path: Path
) -> None:
    text = "".join(json.dumps({**GOOD, "id": str(i)}) + "\n" for i in range(9)).encode()
    stream = zlib.compressobj(wbits=31)
    path = tmp_path / "convs.jsonl.gz"
    path.write_bytes(stream.compress(text[:-9]) + stream.flush(zlib.Z_SYNC_FLUSH))
    out = tmp_path / "out"
    arguments = (path, "-m", tiny_model, "-o", out)
    finished = tokscore("render", *arguments, "--on-error", "skip")
    assert finished.returncode == 0, finished.stderr
    assert tokens_of(out)["conversation_id"].unique(maintain_order=True).to_list() == list("01234567")
    (row,) = map(json.loads, (out / "errors/part-00000.jsonl").read_text().splitlines())
    assert (row["source_file"], row["source_line"]) == ("convs.jsonl.gz", 9)
    plan = tokscore(
        "logprobs", *arguments[:-1], tmp_path / "scores", "--dry-run", "--exact-plan", "--format", "json"
    )
    assert (json.loads(plan.stdout)["n_sequences"], json.loads(plan.stdout)["n_failed"]) == (8, 1)
    drifted = tokscore("drift", path, "-m", tiny_model, "--on-error", "skip", "--format", "json")
    assert json.loads(drifted.stdout)["n_failed"] == 1
    counted = tokscore("stats", path, "--format", "json")
    assert "convs.jsonl.gz:9: is missing, and all behind it: the file is damaged here (gzip" in counted.stderr
    assert json.loads(counted.stdout)["n_conversations"] == 8


def test_bytes_that_are_no_text_cost_one_record(tiny_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "convs.jsonl"
    good = json.dumps(GOOD).encode()
    path.write_bytes(good + b"\n" + good.replace(b"Hi", b"H\xff") + b"\n")
    out = rendered([path], tiny_model, tmp_path / "out")
    error = json.loads((out / "errors/part-00000.jsonl").read_text())
    assert "is not UTF-8: byte" in error["reason"]


def test_an_unknown_format_is_said_with_what_was_found(
    tokscore: Run, tiny_model: Path, write_jsonl: Write, tmp_path: Path
) -> None:
    path = write_jsonl({"question": "Hi", "reply": "Yo"})
    failed = tokscore("render", path, "-m", tiny_model, "-o", tmp_path / "out")
    assert failed.returncode == 3
    assert "convs.jsonl:1: $.messages is missing" in failed.stderr
    assert "question, reply" in failed.stderr
    assert "tokscore formats" in failed.stderr
    wrong = tokscore("render", path, "-m", tiny_model, "-o", tmp_path / "out", "--input-format", "nope")
    assert wrong.returncode == 2
    assert "there is no input format 'nope'; expected verifiers" in wrong.stderr


def test_repeated_ids_are_renamed(tiny_model: Path, write_jsonl: Write, tmp_path: Path) -> None:
    out = rendered([write_jsonl(GOOD, GOOD)], tiny_model, tmp_path / "out")
    assert tokens_of(out)["conversation_id"].to_list() == ["good", "good", "good#2", "good#2"]


def test_ids_of_a_conversation_with_media_are_kept_but_not_scored(
    tokscore: Run, tiny_model: Path, write_jsonl: Write, tmp_path: Path
) -> None:
    parts = [{"type": "image_url", "image_url": {"url": "a.png"}}, {"type": "text", "text": "What is it?"}]
    message = {"role": "user", "content": parts}
    path = write_jsonl(GOOD, {"id": "picture", "nodes": [node(None, [3, 3, 3, 4], message=message)]})
    out = rendered([path], tiny_model, tmp_path / "out")
    tokens = tokens_of(out).filter(pl.col("conversation_id") == "picture")
    assert tokens["message_index"].to_list() == [0] * 4
    assert not tokens["is_sampled"].any()
    scored = tokscore("logprobs", out, "-m", tiny_model, "-o", tmp_path / "scores", "--on-error", "skip")
    assert scored.returncode == 0, scored.stderr
    error = json.loads((tmp_path / "scores/errors/part-00000.jsonl").read_text())
    assert error["conversation_id"] == "picture"
    assert "holds images, audio or files" in error["reason"]


def test_the_records_of_one_group_stay_in_one_part(tmp_path: Path, write_jsonl: Write) -> None:
    from tokscore.rendering.reading.plan import plan_files, read_lines

    groups = ["a", "a", "a", "b", "b", None, None, "c"]
    records = [{"messages": [user("x" * 100)], "id": i, "group": group} for i, group in enumerate(groups)]
    plan = plan_files([str(write_jsonl(*records))], part_bytes=150)
    parts = [[int(line.conversation_id) for line in read_lines(plan, part)] for part in plan.parts]
    assert [i for part in parts for i in part] == list(range(len(groups)))
    assert len(parts) > 2
    for group in ("a", "b"):
        assert len([part for part in parts if any(groups[i] == group for i in part)]) == 1


def test_a_dry_run_counts_shared_tokens_once(
    tokscore: Run, tiny_model: Path, write_jsonl: Write, tmp_path: Path
) -> None:
    record = {
        "nodes": [
            node(None, [1, 2]),
            node(0, [3], sampled=True, mask=[True]),
            node(1, [4, 5], sampled=True, mask=[True, True]),
            node(1, [6, 7, 8, 9], sampled=True, mask=[True] * 4),
        ]
    }
    arguments = ("-m", tiny_model, "-o", tmp_path / "out", "--dry-run", "--exact-plan", "--format", "json")
    for command in ("render", "logprobs"):
        finished = tokscore(command, write_jsonl(record), *arguments)
        assert finished.returncode == 0, finished.stderr
        plan = json.loads(finished.stdout)
        assert (plan["n_sequences"], plan["n_logical_tokens"], plan["n_unique_tokens"]) == (2, 12, 9)


class TestDrift:
    def test_the_example_shows_where_and_why(self, tokscore: Run, teacher_model: Path) -> None:
        examples = Path(__file__).parents[2] / "examples"
        finished = tokscore(
            "drift",
            examples / "recorded.jsonl",
            "-m",
            teacher_model,
            "--template",
            examples / "chatml_tools.jinja",
            "--format",
            "json",
        )
        assert finished.returncode == 0, finished.stderr
        found = json.loads(finished.stdout)
        assert (found["n_same"], found["n_drifted"]) == (3, 2)
        assert [(row["conversation_id"], row["branch"], row["kind"]) for row in found["drifted"]] == [
            ("spelled-otherwise", 0, "boundary_merge"),
            ("two-answers", 1, "whitespace"),
        ]
        assert all(row["position"] + row["n_after"] == row["n_tokens"] for row in found["drifted"])

    def test_conversations_without_ids_are_bad_input(
        self, tokscore: Run, tiny_model: Path, write_jsonl: Write, conversation: Any
    ) -> None:
        failed = tokscore("drift", write_jsonl(conversation), "-m", tiny_model)
        assert failed.returncode == 3
        assert "1 without recorded token ids" in failed.stderr

    def test_text_has_no_ids_to_compare(self, tiny_model: Path, write_jsonl: Write) -> None:
        path = write_jsonl({"prompt": "2 + 2 =", "completion": " 4"})
        source = open_source(str(path), str(tiny_model))
        assert isinstance(source, ConversationSource)
        assert list(drift(source)) == [NotRecorded("convs.jsonl:1")]

    def test_branches_without_text_cost_no_others(self, tiny_model: Path, write_jsonl: Write) -> None:
        line = (FIXTURES / "verifiers_results.jsonl").read_text().splitlines()[7]
        source = open_source(str(write_jsonl(line)), str(tiny_model))
        assert isinstance(source, ConversationSource)
        first, second, last = drift(source)
        assert first == second == NotRecorded("convs.jsonl:1")
        assert isinstance(last, Drift)
        assert (last.branch, last.n_tokens) == (2, 7)

    def test_bad_records_are_skipped_when_asked(
        self, tokscore: Run, tiny_model: Path, write_jsonl: Write
    ) -> None:
        path = write_jsonl(GOOD, '{"nodes": [')
        assert tokscore("drift", path, "-m", tiny_model).returncode == 3
        finished = tokscore("drift", path, "-m", tiny_model, "--on-error", "skip", "--format", "csv")
        assert finished.returncode == 0, finished.stderr
        assert "skipped: convs.jsonl:2: is not JSON" in finished.stderr


def test_logprobs_keep_their_values(tiny_model: Path, write_jsonl: Write, tmp_path: Path) -> None:
    record = {"prompt_token_ids": [1, 2], "completion_token_ids": [3, 4, 5], "logprobs": [-0.5, None, -1.25]}
    out = rendered([write_jsonl(record)], tiny_model, tmp_path / "out")
    assert tokens_of(out)["recorded_logprob"].to_list() == [None, None, -0.5, None, -1.25]
    (conversation,) = Dataset(out).read_part(0)
    logprobs = conversation.tokens.recorded_logprobs
    assert logprobs is not None
    np.testing.assert_array_equal(logprobs, np.array([np.nan, np.nan, -0.5, np.nan, -1.25], np.float32))
