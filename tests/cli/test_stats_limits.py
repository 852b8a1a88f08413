"""`tokscore stats --limit`, from outside."""

from __future__ import annotations

import csv
import json
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokscore.analytics.trajectories.counts import branch_counts, trace_counts
from tokscore.analytics.trajectories.limit_report import as_trace, parse_limits
from tokscore.analytics.trajectories.limits import TrajectoryLimits
from tokscore.dataset.errors import UsageError
from tokscore.dataset.manifest import Manifest, Part, TokenizerIdentity
from tokscore.dataset.schema import DatasetKind
from tokscore.dataset.tokens import ConversationRow, MessageFacts, RenderedConversation, RenderedTokens
from tokscore.dataset.writing import PartWriter

Run = Callable[..., "subprocess.CompletedProcess[str]"]
# Of each message its role, its ids, and how many of them, the last ones, a model generated; None: unknown.
Message = tuple[str, Sequence[int], int | None]


def tokens(*messages: Message) -> RenderedTokens:
    """One branch, behind an id of no message."""
    masks = [[-1] * len(ids) if n is None else [0] * (len(ids) - n) + [1] * n for _, ids, n in messages]
    lengths = [len(ids) for _, ids, _ in messages]
    indices = np.concatenate([[-1], np.repeat(np.arange(len(messages)), lengths)]).astype(np.int32)
    return RenderedTokens(
        token_ids=np.array([99, *(each for _, ids, _ in messages for each in ids)], np.int32),
        message_indices=indices,
        sampled_mask=np.array([0, *(each for mask in masks for each in mask)], np.int8),
        is_content=indices >= 0,
        source_codes=np.zeros(len(indices), np.int16),
        sources=("content",),
        messages=tuple(MessageFacts(role) for role, _, _ in messages),
    )


QUESTION: Message = ("user", [1, 2, 3], 0)
SHORT: Message = ("assistant", [4, 5, 6], 2)
LONG: Message = ("assistant", [4, 5, 7, 8], 3)
TOOL: Message = ("tool", [9, 9], 0)
FORKED = [tokens(QUESTION, SHORT), tokens(QUESTION, LONG, TOOL, SHORT)]
TRAJECTORIES: dict[str, list[RenderedTokens]] = {
    "brief": [tokens(QUESTION, SHORT)],
    "forked": FORKED,
    "unknown": [tokens(QUESTION, ("assistant", [4, 5], None))],
    "unanswered": [tokens(QUESTION)],
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All branches, the first two in one part and the others in the next."""
    root = tmp_path_factory.mktemp("limits") / "tokens"
    root.mkdir()
    manifest = Manifest(
        kind=DatasetKind.TOKENS,
        tokscore_version="0",
        settings={},
        tokenizer=TokenizerIdentity("tok", None, "t" * 64, "c" * 64, 100),
        model=None,
        inputs=[],
        parts=[Part(0, 0, 0, 1, 1), Part(1, 0, 1, 2, 1)],
    ).sealed()
    (root / "manifest.json").write_bytes(manifest.to_json())
    rows = [
        RenderedConversation(ConversationRow(name, branch, "rollouts.jsonl", 1), each)
        for name, branches in TRAJECTORIES.items()
        for branch, each in enumerate(branches)
    ]
    for part in manifest.parts:
        with PartWriter(root, manifest, part.index) as writer:
            for each in rows[:2] if part.index == 0 else rows[2:]:
                writer.add(each)
            writer.finish()
    return root


def report(tokscore: Run, dataset: Path, *arguments: str) -> Any:
    finished = tokscore("stats", dataset, *arguments, "--format", "json")
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)


def row(conversation: str, turn: int | None, limit: str | None, *counts: int | None) -> dict[str, object]:
    numbers = counts or (None, None, None)
    return {
        "conversation": conversation,
        "turn": turn,
        "limit": limit,
        **dict(zip(("input", "output", "total"), numbers, strict=True)),
    }


def test_the_report_names_turn_and_limit(tokscore: Run, dataset: Path) -> None:
    found = report(tokscore, dataset, "--limit", "total=10", "--limit", "max_turns=1")
    assert found["rows"] == [
        # One id of no message, 3 of the question, 3 of the answer, of which 2 were generated.
        row("brief", 1, "max_turns", 5, 2, 7),
        row("forked", 1, "max_turns", 5, 2, 7),
        row("unknown", None, None),
    ]
    assert found["n_stopped"] == {"max_turns": 2, "total": 0}
    assert (found["n_finished"], found["n_unknown"], found["n_conversations"]) == (1, 1, 4)
    assert found["limits"] == {"max_turns": 1, "total": 10}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        # The second answer adds 2 ids behind 2 that it shares, then come 2 of a tool and 3 of an answer.
        (("--limit", "total=9"), row("forked", 2, "total", 5, 4, 9)),
        (("--limit", "total=10"), row("forked", 3, "total", 8, 6, 14)),
        (("--limit", "total=10", "--limit-count", "unique"), row("forked", 3, "total", 8, 6, 14)),
        # Both branches at that time: 1 + 3 + 3 and 1 + 3 + 4.
        (("--limit", "total=10", "--limit-count", "branches"), row("forked", 2, "total", 10, 5, 15)),
        (("--limit", "input=6"), row("forked", 3, "input", 8, 6, 14)),
        (("--limit", "output=6"), row("forked", 3, "output", 8, 6, 14)),
        (("--limit", "max_turns=3", "--limit", "total=14"), row("forked", 3, "max_turns", 8, 6, 14)),
    ],
)
def test_shared_tokens_count_once_or_once_a_branch(
    tokscore: Run, dataset: Path, arguments: tuple[str, ...], expected: dict[str, object]
) -> None:
    assert report(tokscore, dataset, *arguments)["rows"] == [expected, row("unknown", None, None)]


def test_csv_holds_the_same_rows(tokscore: Run, dataset: Path) -> None:
    finished = tokscore("stats", dataset, "--limit", "total=9", "--format", "csv")
    assert finished.returncode == 0, finished.stderr
    assert list(csv.reader(finished.stdout.splitlines())) == [
        ["conversation", "turn", "limit", "input", "output", "total"],
        ["forked", "2", "total", "5", "4", "9"],
        ["unknown", "", "(cannot be told)", "", "", ""],
    ]
    assert finished.stderr.startswith("4 conversations: stopped 1 by total, 1 cannot be told\n")
    assert "nothing says which tokens of an answer were generated" in finished.stderr


def test_the_table_is_followed_by_a_count_by_limit(tokscore: Run, dataset: Path) -> None:
    shown = tokscore("stats", dataset, "--limit", "total=9", "--limit", "output=100").stdout
    first, second = shown.split("Trajectories by limit")
    assert "forked" in first
    lines = [line.rsplit(maxsplit=1) for line in second.splitlines()]
    counts = [(cells[0].strip(), cells[1]) for cells in lines if len(cells) == 2 and cells[1].isdigit()]
    assert counts == [("output", "0"), ("total", "1"), ("(none)", "2"), ("(cannot be told)", "1")]


@pytest.mark.parametrize(
    "text", ["turns=3", "total", "total=", "total=0", "total=-1", "total=1.5", "=3", "total=²"]
)
def test_another_limit_is_wrong_usage(tokscore: Run, dataset: Path, text: str) -> None:
    finished = tokscore("stats", dataset, "--limit", text)
    assert (finished.returncode, finished.stdout) == (2, "")
    assert finished.stderr == (
        f"error: --limit is {text!r}; expected max_turns=N, input=N, output=N, total=N with N from 1 on.\n"
    )


def test_a_limit_given_twice_is_refused() -> None:
    with pytest.raises(UsageError, match=r"`limit` total is given twice, as 5 and 6; give one"):
        parse_limits(["total=5", "input=3", "total=6"])


def test_limits_are_read_by_name() -> None:
    assert parse_limits(["total=5", "max_turns=2"]) == TrajectoryLimits(max_turns=2, total=5)


def test_the_tree_of_branches_holds_their_tokens() -> None:
    trace = as_trace(FORKED)
    along = [[int(each) for i in path for each in trace.nodes[i].tokens.token_ids] for path in trace.branches]
    assert along == [branch.token_ids.tolist() for branch in FORKED]
    assert [counts.total for counts in branch_counts(trace)] == [len(branch) for branch in FORKED]
    assert trace_counts(trace).total == 7 + 2 + 2 + 3


def test_equal_branches_add_no_tokens() -> None:
    assert trace_counts(as_trace([FORKED[1]] * 3)) == trace_counts(as_trace(FORKED[1:]))


def test_a_branch_that_begins_an_earlier_one_adds_a_turn_without_tokens() -> None:
    begun = tokens(QUESTION, ("assistant", [4, 5], 1))
    assert trace_counts(as_trace([*FORKED, begun])) == trace_counts(as_trace(FORKED))
    assert sum(node.is_sampled for node in as_trace([*FORKED, begun]).nodes) == 4


def test_a_generated_stop_that_opens_the_next_message_ends_the_turn() -> None:
    branch = tokens(("user", [1], 0), ("assistant", [2, 3], 2), ("user", [50, 4], 0))
    mask = branch.sampled_mask.copy()
    mask[4] = 1  # the 50
    trace = as_trace([replace(branch, sampled_mask=mask)])
    turns = [node.tokens.token_ids.tolist() for node in trace.nodes if node.is_sampled]
    assert turns == [[2, 3, 50]]
    assert trace_counts(trace) == (3, 3, 6)


def test_rendered_conversations_stop_at_their_turns(
    tokscore: Run, tiny_model: Path, write_jsonl: Callable[..., Path], tmp_path: Path
) -> None:
    turn = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]
    path = write_jsonl({"id": "one", "messages": turn}, {"id": "three", "messages": turn * 3})
    made = tokscore("render", path, "-m", tiny_model, "-o", tmp_path / "tokens")
    assert made.returncode == 0, made.stderr
    found = report(tokscore, tmp_path / "tokens", "--limit", "max_turns=2")
    # A byte a token, `<|im_start|>user\\nHi<|im_end|>\\n` and the like; "Hello!" and its stop are generated.
    question, answer, n_generated = 1 + 5 + 2 + 1 + 1, 1 + 10 + 6 + 1 + 1, 6 + 1
    n_output, total = 2 * n_generated, 2 * (question + answer)
    assert found["rows"] == [row("three", 2, "max_turns", total - n_output, n_output, total)]


def test_scores_are_read_as_tokens_are(tokscore: Run, tiny_scores: Path) -> None:
    found = report(tokscore, tiny_scores, "--limit", "max_turns=1")
    assert [(each["conversation"], each["turn"]) for each in found["rows"]] == [("kettle-limescale", 1)]


def test_without_a_limit_the_tokens_are_counted(tokscore: Run, dataset: Path) -> None:
    found = report(tokscore, dataset)
    assert found["total"]["n_tokens"] == sum(
        len(each) for branches in TRAJECTORIES.values() for each in branches
    )


FORKED_RECORD = {
    "id": "forked",
    "branches": [
        {"prompt_token_ids": [1, 2], "completion_token_ids": [3, 4]},
        {"prompt_token_ids": [1, 2], "completion_token_ids": [5, 6, 7]},
    ],
}
REPORTED_RECORD = {
    "id": "reported",
    "nodes": [
        {"parent": None, "sampled": False, "message": {"role": "user", "content": "Hi"}},
        {"parent": 0, "sampled": True, "message": {"role": "assistant", "content": "Yo"}},
        {"parent": 1, "sampled": False, "message": {"role": "user", "content": "And?"}},
        {"parent": 2, "sampled": True, "message": {"role": "assistant", "content": "No"}},
    ],
    "calls": [
        {"node": 1, "usage": {"prompt_tokens": 10, "completion_tokens": 5}},
        {"node": 3, "usage": {"prompt_tokens": 17, "completion_tokens": 5}},
    ],
}


def test_recorded_ids_are_counted_as_they_are_with_shared_ones_once(
    tokscore: Run, write_jsonl: Callable[..., Path]
) -> None:
    finished = tokscore("stats", write_jsonl(FORKED_RECORD, '{"messages": 3'), "--format", "json")
    assert finished.returncode == 0, finished.stderr
    assert "1 of 1 failure: convs.jsonl:2: is not JSON" in finished.stderr
    assert json.loads(finished.stdout) == {
        "input_format": "tokens",
        "n_conversations": 1,
        "n_branches": 2,
        "n_turns": 2,
        "input": 2,
        "output": 5,
        "total": 7,
        "total_by_branches": 9,
        "n_errors": 1,
    }


@pytest.mark.parametrize(
    ("limit", "turn"), [("input=10", 1), ("input=12", 2), ("total=22", 2), ("total=23", 0)]
)
def test_reported_usage_counts_new_input_only(
    tokscore: Run, write_jsonl: Callable[..., Path], limit: str, turn: int
) -> None:
    """(10, 5), then (17, 5): 10 + max(0, 17 - 15) = 12 tokens of input."""
    finished = tokscore("stats", write_jsonl(REPORTED_RECORD), "--limit", limit, "--format", "json")
    assert finished.returncode == 0, finished.stderr
    assert [row["turn"] for row in json.loads(finished.stdout)["rows"]] == [turn] * bool(turn)


def test_messages_alone_cannot_be_counted(
    tokscore: Run, write_jsonl: Callable[..., Path], conversation: object
) -> None:
    failed = tokscore("stats", write_jsonl(conversation))
    assert failed.returncode == 3
    assert ":1: holds an answer at its node 1, of which neither token ids nor a usage say" in failed.stderr
    assert "tokscore render FILE -m MODEL -o DIR, then tokscore stats DIR" in failed.stderr
    turns = tokscore("stats", write_jsonl(conversation), "--limit", "max_turns=1", "--format", "csv")
    assert turns.stdout.splitlines()[1] == "greeting,1,max_turns,,,"
