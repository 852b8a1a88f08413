"""Groups in the order of a number, the worst conversations, and the worst tokens."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from tokscore.analytics.groups.ranking import Ranking
from tokscore.analytics.groups.worst import worst_tokens
from tokscore.cli.app import app
from tokscore.dataset.errors import UsageError

Make = Callable[..., Any]  # fixtures of conftest.py, which tests cannot import
PRIME_RL = Path(__file__).parents[2] / "data/formats/prime_rl.jsonl"
ROLES = [("user", 5), ("assistant", 9), ("tool", 3), ("assistant", 20)]


class Row(NamedTuple):
    name: str
    value: float | None

    def flat(self) -> dict[str, object]:
        return {"value": self.value}


ROWS = [Row("a", 1.0), Row("b", None), Row("c", 3.0), Row("d", 1.0), Row("e", -2.0)]


@pytest.mark.parametrize(
    ("sort", "top", "order"),
    [
        (None, None, "abcde"),
        (None, 2, "ab"),
        ("value", None, "cadeb"),
        ("-value", None, "eadcb"),
        ("-value", 3, "ead"),
        ("value", 9, "cadeb"),
    ],
)
def test_rows_are_ordered_by_a_number(sort: str | None, top: int | None, order: str) -> None:
    assert "".join(row.name for row in Ranking(sort, top, ["value"]).apply(ROWS)) == order


@pytest.mark.parametrize(
    ("sort", "top", "message"),
    [
        ("mean_logprb", None, "cannot sort by mean_logprb; did you mean mean_logprob"),
        ("-x", None, "cannot sort by x; expected one of n_tokens"),
        (None, 0, "`top` is 0; expected at least 1"),
    ],
)
def test_what_is_no_number_is_refused(sort: str | None, top: int | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Ranking(sort, top, ["n_tokens", "mean_logprob"])


@pytest.fixture
def scores(conversation: Make, write_dataset: Make) -> Path:
    many = [conversation(f"c{i}", ROLES[: 1 + i % 4], seed=i) for i in range(12)]
    return write_dataset(many, n_parts=3)  # type: ignore[no-any-return]


def frame_of(path: Path) -> pl.DataFrame:
    return pl.concat([pl.read_parquet(each) for each in sorted((path / "scores").glob("*.parquet"))])


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_worst_tokens_are_those_with_the_lowest_logprobs(scores: Path) -> None:
    frame = frame_of(scores).filter(pl.col("logprob").is_not_null())
    lowest = frame.sort("logprob", maintain_order=True).head(7)
    found = worst_tokens(scores, 7)
    for name in ("conversation_id", "branch", "position", "role", "token_id", "logprob", "rank"):
        assert [getattr(token, name) for token in found] == lowest[name].to_list()
    assert [token.text for token in found] == [f"<{token.token_id}>" for token in found]
    assert len(worst_tokens(scores, 10_000)) == len(frame)


def test_of_equal_tokens_the_first_are_the_worst(conversation: Make, write_dataset: Make) -> None:
    def equal(columns: dict[str, pa.Array]) -> dict[str, pa.Array]:
        n = len(columns["logprob"])
        return columns | {"logprob": pa.array([None, -math.inf] + [-2.0] * (n - 2), pa.float32())}

    path = write_dataset([conversation(f"c{i}", [("user", 4)], seed=i) for i in range(3)], columns=equal)
    found = [(token.conversation_id, token.position) for token in worst_tokens(path, 5)]
    assert found == [("c0", 1), ("c1", 1), ("c2", 1), ("c0", 2), ("c0", 3)]
    first = json.loads(run("stats", path, "--worst-tokens", 1, "--format", "json").stdout)[0]
    assert (first["conversation_id"], first["logprob"]) == ("c0", None)


def test_worst_conversations_have_the_lowest_mean(scores: Path) -> None:
    mean = frame_of(scores).group_by("conversation_id").agg(pl.col("logprob").cast(pl.Float64).mean())
    lowest = mean.sort("logprob").head(4)
    found = json.loads(run("stats", scores, "--worst", 4, "--format", "json").stdout)["groups"]
    assert [group["group"] for group in found] == lowest["conversation_id"].to_list()
    assert [group["mean_logprob"] for group in found] == pytest.approx(lowest["logprob"].to_list())
    table = run("stats", scores, "--worst", 4)
    assert "8 groups more (--worst 4)." in table.stderr


def test_stats_are_sorted_as_asked(scores: Path) -> None:
    arguments = ("stats", scores, "--by", "role", "--format", "csv", "--sort")
    rows = [*csv.DictReader(io.StringIO(run(*arguments, "n_tokens").stdout))]
    counts = [int(row["n_tokens"]) for row in rows[:-1]]
    assert counts == sorted(counts, reverse=True)
    assert rows[-1]["group"] == "(all)"
    rising = [*csv.DictReader(io.StringIO(run(*arguments, "-n_tokens", "--top", 2).stdout))]
    assert [int(row["n_tokens"]) for row in rising[:-1]] == counts[::-1][:2]
    refused = run("stats", scores, "--sort", "perplexty")
    assert "did you mean perplexity" in str(refused.exception)


def test_diff_shows_the_conversations_that_diverge_most(conversation: Make, write_dataset: Make) -> None:
    sides = [
        write_dataset([conversation(f"c{i}", ROLES[: 1 + i % 4], seed=i, model=model) for i in range(8)])
        for model in (0, 1)
    ]
    every = json.loads(run("diff", *sides, "--by", "conversation_id", "--format", "json").stdout)["groups"]
    order = np.argsort([-group["gjs_0.5"]["lower"] for group in every], kind="stable")
    worst = json.loads(run("diff", *sides, "--worst", 3, "--format", "json").stdout)["groups"]
    assert [group["group"] for group in worst] == [every[i]["group"] for i in order[:3]]
    sort = run("diff", *sides, "--by", "role", "--sort", "-log_ratio", "--top", 1, "--format", "json")
    by_role = json.loads(run("diff", *sides, "--by", "role", "--format", "json").stdout)["groups"]
    least = min((g for g in by_role if g["log_ratio"] is not None), key=lambda group: group["log_ratio"])
    assert json.loads(sort.stdout)["groups"] == [least]
    assert "--worst is --by conversation_id" in str(run("diff", *sides, "--worst", 1, "--top", 1).exception)


def test_recorded_conversations_are_sorted_too(conversation: Make, write_dataset: Make) -> None:
    left = iter(range(5))

    def record(columns: dict[str, pa.Array]) -> dict[str, pa.Array]:
        i = next(left)
        values = [None if v is None else v - 0.1 * ((i * 3) % 5) for v in columns["logprob"].to_pylist()]
        return columns | {"recorded_logprob": pa.array(values, pa.float32())}

    path = write_dataset([conversation(f"c{i}", seed=i) for i in range(5)], columns=record)
    found = json.loads(run("diff", "--recorded", path, "--worst", 2, "--format", "json").stdout)["groups"]
    assert [group["group"] for group in found] == ["c3", "c1"]
    # Headers and prompts, of which nothing was recorded, are no groups that --top leaves out.
    table = run("diff", "--recorded", PRIME_RL, "--by", "conversation_id,message_index", "--top", 3)
    assert "4 groups (" in table.stderr
    assert "more (--top" not in table.stderr
    sort = run("diff", "--recorded", path, "--sort", "mismatch_kl.k2")
    assert "cannot sort by mismatch_kl.k2; did you mean mismatch_kl.k" in str(sort.exception)
