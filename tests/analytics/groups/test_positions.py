"""Groups by position in the answer and in the message, held against a loop over tokens."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from tokscore.analytics import diff_report, mismatch, stats_report
from tokscore.analytics.groups import row_groups
from tokscore.analytics.groups.positions import answer_positions, encode_bins
from tokscore.cli.app import app

Make = Callable[..., Any]  # fixtures of conftest.py, which tests cannot import
ROLES = [("user", 5), ("assistant", 9), ("tool", 3), ("assistant", 20), ("assistant", 2), ("user", 4)]


def first_of_bin(position: int) -> int:
    """0, 1, 2, 2, 4, 4, 4, 4, 8 and so on, by halving."""
    first = 1
    while first * 2 <= position:
        first *= 2
    return 0 if position == 0 else first


def rows_of(path: Path) -> pl.DataFrame:
    return pl.concat([pl.read_parquet(each) for each in sorted((path / "scores").glob("*.parquet"))])


def by_hand(rows: pl.DataFrame, by: str) -> dict[int | None, list[dict[str, Any]]]:
    """The rows of each bin, one row after the other."""
    groups: dict[int | None, list[dict[str, Any]]] = defaultdict(list)
    before: dict[str, Any] | None = None
    n = 0
    for row in rows.iter_rows(named=True):
        if by == "position_in_message":
            key = None if row["message_index"] < 0 else first_of_bin(row["position_in_message"])
        elif not row["is_sampled"]:
            key, n = None, 0
        else:
            is_same = before is not None and before["conversation_id"] == row["conversation_id"]
            n = n if is_same else 0
            key, n = first_of_bin(n), n + 1
        groups[key].append(row)
        before = row
    return groups


@pytest.fixture
def scores(conversation: Make, write_dataset: Make) -> Path:
    many = [conversation(f"c{i}", ROLES[i % 4 :], seed=i, n_header=i % 2) for i in range(9)]
    # One that ends and one that begins with sampled tokens are two answers.
    many += [conversation("ends", [("assistant", 3)], seed=20), conversation("begins", [("assistant", 3)])]
    many.append(conversation("unknown", ROLES, seed=21)._replace(sampled=-1))
    return write_dataset(many, n_parts=2)  # type: ignore[no-any-return]


@pytest.mark.parametrize("by", ["answer_position", "position_in_message"])
@pytest.mark.parametrize("batch_rows", [7, 400_000])
def test_stats_by_bins_that_double(
    scores: Path, by: str, batch_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_groups, "_BATCH_ROWS", batch_rows)
    report = stats_report(scores, by=by)
    expected = by_hand(rows_of(scores), by)
    assert {row.group: row.n_tokens for row in report.groups} == {k: len(v) for k, v in expected.items()}
    for row in report.groups:
        known = [each["logprob"] for each in expected[row.group] if each["logprob"] is not None]
        expected_mean = sum(known) / len(known) if known else None
        assert row.mean_logprob == pytest.approx(expected_mean, abs=1e-9)
    labels = [report.by.labels(row.group)[by] for row in report.groups]
    assert labels[:5] == ["0", "1", "2-3", "4-7", "8-15"]
    assert labels[-1] == {"answer_position": "(no answer)", "position_in_message": "(no message)"}[by]


@pytest.mark.parametrize("by", ["answer_position", "position_in_message"])
def test_diff_by_bins_that_double(conversation: Make, write_dataset: Make, by: str) -> None:
    sides = [
        write_dataset([conversation(f"c{i}", ROLES, seed=i, model=model) for i in range(4)])
        for model in (0, 1)
    ]
    report = diff_report(*sides, by=by)
    expected, other = (by_hand(rows_of(side), by) for side in sides)
    for row in report.groups:
        gaps = [
            np.float64(t["logprob"]) - np.float64(s["logprob"])
            for t, s in zip(expected[row.group], other[row.group], strict=True)
            if t["logprob"] is not None
        ]
        assert row.n_tokens == len(gaps)
        if gaps:
            assert row.log_ratio == pytest.approx(np.mean(gaps), abs=1e-12)
    assert {row.group for row in report.groups} == set(expected)


def test_recorded_by_role_and_bin(conversation: Make, write_dataset: Make) -> None:
    def record(columns: dict[str, pa.Array]) -> dict[str, pa.Array]:
        return columns | {"recorded_logprob": columns["logprob"]}

    path = write_dataset([conversation("c", ROLES)], columns=record)
    report = mismatch(path, by="role,answer_position")
    found = {row.group: row.n_tokens for row in report.groups if row.n_tokens}
    # The third message of the assistant goes on in the answer of the second: nothing stands between.
    assert {key[1]: n for key, n in found.items() if key[0] == "assistant"} == {
        first: len(each)
        for first, each in by_hand(rows_of(path), "answer_position").items()
        if first is not None
    }


def test_an_answer_begins_anew_in_every_conversation() -> None:
    sampled = pa.chunked_array([[False, True, True], [True, None, True, True, True]])
    found = answer_positions(sampled, np.array([0, 3, 6]))
    assert found.tolist() == [-1, 0, 1, 0, -1, 0, 0, 1]
    assert answer_positions(pa.chunked_array([[]], pa.bool_()), np.array([0])).tolist() == []


def test_bins_of_every_position_up_to_5000() -> None:
    positions = np.arange(-1, 5000)
    codes, values = encode_bins(positions)
    found = [values[code] for code in codes.tolist()]
    assert found == [None, *map(first_of_bin, range(5000))]


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_tables_leave_out_what_is_in_no_answer_and_count_it(scores: Path) -> None:
    found = run("stats", scores, "--by", "answer_position")
    assert found.exit_code == 0, found.output
    n = len(by_hand(rows_of(scores), "answer_position")[None])
    assert f"left out, without values: 1 group ((no answer)), {n} tokens." in found.stderr
    assert "(no answer)" not in found.stdout
    assert "16-31" in found.stdout
    groups = json.loads(run("stats", scores, "--by", "answer_position", "--format", "json").stdout)["groups"]
    assert [group["group"] for group in groups] == [0, 1, 2, 4, 8, 16, None]


def test_the_table_of_groups_has_the_first_position_of_a_bin(
    conversation: Make, write_dataset: Make, tmp_path: Path
) -> None:
    sides = [write_dataset([conversation("c", ROLES, model=model)]) for model in (0, 1)]
    out = tmp_path / "out"
    assert run("diff", *sides, "--by", "answer_position", "-o", out).exit_code == 0
    groups = pl.read_parquet(out / "groups.parquet")
    assert groups.schema["answer_position"] == pl.Int32
    assert groups["answer_position"].to_list() == [0, 1, 2, 4, 8, 16, None]
    assert "is_sampled" in pl.read_parquet(out / "tokens.parquet").columns
