"""Which conversations are kept, held against the reports that print the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tokscore.analytics import diff, stats
from tokscore.analytics.selection.choosing import parse_amount, select
from tokscore.analytics.selection.metrics import conversation_metrics, metric_names
from tokscore.dataset.errors import UsageError
from tokscore.dataset.reading import Dataset
from tokscore.dataset.schema import DatasetKind

Make = Callable[..., Path]


@pytest.fixture
def scored(conversation: Make, write_dataset: Make) -> Path:
    conversations = [
        conversation(f"c{i}", (("user", 2 + i), ("assistant", 3 + i % 3), ("user", 1)), seed=i)._replace(
            metadata=f'{{"source": "s{i % 2}", "n": {i}}}'
        )
        for i in range(9)
    ]
    return write_dataset(conversations, n_parts=3, n_failed=0)


def test_numbers_are_those_of_stats(scored: Path) -> None:
    ours = conversation_metrics(Dataset(scored)).sort("conversation_id")
    theirs = stats(scored, by="conversation_id").sort("conversation_id")
    for name in metric_names(DatasetKind.SCORES):
        if name in theirs.columns and name != "n_messages":  # stats has no messages by conversation
            np.testing.assert_allclose(ours[name].to_numpy(), theirs[name].to_numpy(), rtol=1e-12)
    assert ours["n_messages"].to_list() == [3] * 9


def test_numbers_of_one_role_are_those_of_stats(scored: Path) -> None:
    ours = conversation_metrics(Dataset(scored), role="assistant").sort("conversation_id")
    theirs = stats(scored, by="conversation_id,role").filter(role="assistant").sort("conversation_id")
    for name in ("n_tokens", "n_scored", "mean_logprob", "rank1_share", "mean_entropy"):
        np.testing.assert_allclose(ours[name].to_numpy(), theirs[name].to_numpy(), rtol=1e-12)
    assert ours["n_messages"].to_list() == [1] * 9


def test_only_sampled_tokens_count(scored: Path) -> None:
    ours = conversation_metrics(Dataset(scored), sampled=True).sort("conversation_id")
    theirs = stats(scored, by="conversation_id,is_sampled").filter(is_sampled=True).sort("conversation_id")
    np.testing.assert_allclose(ours["mean_logprob"].to_numpy(), theirs["mean_logprob"].to_numpy())


def test_a_condition_keeps_what_it_holds_for(scored: Path) -> None:
    by_hand = stats(scored, by="conversation_id").filter(
        (pl.col("mean_logprob") > -9) & (pl.col("n_tokens") < 14)
    )
    found = select(scored, where="mean_logprob > -9 and n_tokens < 14")
    kept = found.frame.filter(pl.col("reason").is_null())["conversation_id"]
    assert sorted(kept) == sorted(by_hand["conversation_id"])
    assert 0 < found.n_kept < 9
    assert found.reasons() == {"not mean_logprob > -9 and n_tokens < 14": 9 - found.n_kept}


def test_metadata_is_text_or_number(scored: Path) -> None:
    found = select(scored, where="metadata.source = 's1' and metadata.n >= 5")
    kept = found.frame.filter(pl.col("reason").is_null())["conversation_id"]
    assert sorted(kept) == ["c5", "c7"]


def test_metadata_that_is_not_there_is_the_reason(scored: Path) -> None:
    assert select(scored, where="metadata.other > 1").reasons() == {"no metadata.other": 9}


@pytest.mark.parametrize(("amount", "n"), [("4", 4), ("50%", 5), ("0%", 0), ("100%", 9), ("1000", 9)])
def test_the_top_is_kept(scored: Path, amount: str, n: int) -> None:
    ordered = stats(scored, by="conversation_id").sort("mean_logprob", descending=True)["conversation_id"]
    top = select(scored, keep_top=amount, by="mean_logprob").frame.filter(pl.col("reason").is_null())
    assert sorted(top["conversation_id"]) == sorted(ordered[:n])
    bottom = select(scored, keep_bottom=amount, by="mean_logprob").frame.filter(pl.col("reason").is_null())
    assert sorted(bottom["conversation_id"]) == sorted(ordered[len(ordered) - n :])


def test_the_top_is_taken_of_what_the_condition_leaves(scored: Path) -> None:
    found = select(scored, where="metadata.source = 's0'", keep_top="2", by="n_tokens").frame
    assert sorted(found.filter(pl.col("reason").is_null())["conversation_id"]) == ["c6", "c8"]


def test_of_equal_ones_the_first_are_kept(scored: Path) -> None:
    found = select(scored, keep_top="2", by="n_messages").frame
    assert (
        found.filter(pl.col("reason").is_null())["conversation_id"].to_list()
        == found["conversation_id"].head(2).to_list()
    )


def test_numbers_of_another_model_are_those_of_diff(
    scored: Path, conversation: Make, write_dataset: Make
) -> None:
    others = [
        conversation(f"c{i}", (("user", 2 + i), ("assistant", 3 + i % 3), ("user", 1)), seed=i, model=1)
        for i in range(9)
    ]
    student = write_dataset(others, n_parts=3)
    wanted = diff(scored, student, by="conversation_id,role").filter(role="assistant")
    median = wanted["gjs_0.5.upper"].median()
    found = select(scored, where=f"gjs_0.5.upper > {median}", role="assistant", against=student)
    kept = found.frame.filter(pl.col("reason").is_null())["conversation_id"]
    assert sorted(kept) == sorted(wanted.filter(pl.col("gjs_0.5.upper") > median)["conversation_id"])


def test_branches_count_together(conversation: Make, write_dataset: Make) -> None:
    one = conversation("a", seed=1)
    root = write_dataset([one, one._replace(branch=1), conversation("b", seed=2)])
    frame = conversation_metrics(Dataset(root))
    assert frame["conversation_id"].to_list() == ["a", "b"]
    assert frame["n_branches"].to_list() == [2, 1]
    assert frame["n_tokens"].to_list() == [2 * len(one.token_ids), len(one.token_ids)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"where": "mean_logprop > 1"}, "did you mean mean_logprob"),
        ({"where": "n_tokens"}, "not true or false"),
        ({"where": "n_tokens >"}, "is no condition"),
        ({"where": "n_tokens > 'x'"}, "cannot be told"),
        ({"where": 'metadata.source = "s1"'}, "single quotes"),
        ({"keep_top": "90%"}, "expected both or none"),
        ({"by": "n_tokens"}, "expected both or none"),
        ({"keep_top": "1", "keep_bottom": "1", "by": "n_tokens"}, "expected one of them"),
        ({"keep_top": "110%", "by": "n_tokens"}, "no amount"),
        ({"keep_top": "1.5", "by": "n_tokens"}, "no amount"),
        ({"keep_top": "1", "by": "source_file"}, "expected a number"),
        ({}, "nothing says which"),
    ],
)
def test_what_cannot_be_used_is_refused(scored: Path, arguments: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        select(scored, **arguments)


def test_a_share_of_an_amount_counts_as_one() -> None:
    assert [parse_amount("10%").of(n) for n in (0, 1, 10, 11)] == [0, 1, 1, 2]
