"""Which conversations are kept, held against the reports that print the same numbers."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from tokscore.analytics import diff, stats
from tokscore.analytics.selection.amount import first_ones, parse_amount
from tokscore.analytics.selection.choosing import select
from tokscore.analytics.selection.metrics import conversation_metrics, metric_names
from tokscore.analytics.selection.selected import Selection
from tokscore.dataset.errors import TokscoreError, UsageError
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


def _metrics(root: Path, **settings: Any) -> pl.DataFrame:  # Any: arguments of different types
    return pl.concat(conversation_metrics(Dataset(root), **settings))


def _kept(found: Selection) -> list[str]:
    return found.frame.filter(pl.col("reason").is_null())["conversation_id"].to_list()


def test_numbers_are_those_of_stats(scored: Path) -> None:
    ours = _metrics(scored).sort("conversation_id")
    theirs = stats(scored, by="conversation_id").sort("conversation_id")
    for name in metric_names(DatasetKind.SCORES):
        if name in theirs.columns and name != "n_messages":  # stats has no messages by conversation
            np.testing.assert_allclose(ours[name].to_numpy(), theirs[name].to_numpy(), rtol=1e-12)
    assert ours["n_messages"].to_list() == [3] * 9


def test_numbers_of_one_role_are_those_of_stats(scored: Path) -> None:
    ours = _metrics(scored, role="assistant").sort("conversation_id")
    theirs = stats(scored, by="conversation_id,role").filter(role="assistant").sort("conversation_id")
    for name in ("n_tokens", "n_scored", "mean_logprob", "rank1_share", "mean_entropy"):
        np.testing.assert_allclose(ours[name].to_numpy(), theirs[name].to_numpy(), rtol=1e-12)
    assert ours["n_messages"].to_list() == [1] * 9


def test_only_sampled_tokens_count(scored: Path) -> None:
    ours = _metrics(scored, sampled=True).sort("conversation_id")
    theirs = stats(scored, by="conversation_id,is_sampled").filter(is_sampled=True).sort("conversation_id")
    np.testing.assert_allclose(ours["mean_logprob"].to_numpy(), theirs["mean_logprob"].to_numpy())


def test_a_condition_keeps_what_it_holds_for(scored: Path) -> None:
    by_hand = stats(scored, by="conversation_id").filter(
        (pl.col("mean_logprob") > -9) & (pl.col("n_tokens") < 14)
    )
    found = select(scored, where="mean_logprob > -9 and n_tokens < 14")
    assert sorted(_kept(found)) == sorted(by_hand["conversation_id"])
    assert 0 < found.n_kept < 9
    assert found.reasons() == {"not mean_logprob > -9 and n_tokens < 14": 9 - found.n_kept}


def test_metadata_is_text_or_number(scored: Path) -> None:
    found = select(scored, where="metadata.source = 's1' and metadata.n >= 5")
    assert sorted(_kept(found)) == ["c5", "c7"]


def test_whole_and_broken_numbers_of_metadata_are_numbers(conversation: Make, write_dataset: Make) -> None:
    scores = ["1", "0.5", "null", "-2.25", "9007199254740993"]
    root = write_dataset(
        [
            conversation(f"c{i}", seed=i)._replace(metadata=f'{{"score": {score}}}')
            for i, score in enumerate(scores)
        ],
        n_parts=2,
    )
    found = select(root, where="metadata.score > 0.25")
    assert sorted(_kept(found)) == ["c0", "c1", "c4"]
    assert found.reasons() == {"no metadata.score": 1, "not metadata.score > 0.25": 1}


def test_a_mean_in_a_condition_is_that_of_all_parts(scored: Path) -> None:
    by_hand = stats(scored, by="conversation_id").filter(
        pl.col("mean_logprob") > pl.col("mean_logprob").mean()
    )
    found = select(scored, where="mean_logprob > avg(mean_logprob)")
    assert sorted(_kept(found)) == sorted(by_hand["conversation_id"])


def test_metadata_that_is_not_there_is_the_reason(scored: Path) -> None:
    assert select(scored, where="metadata.other > 1").reasons() == {"no metadata.other": 9}


@pytest.mark.parametrize(("amount", "n"), [("4", 4), ("50%", 5), ("0%", 0), ("100%", 9), ("1000", 9)])
def test_the_top_is_kept(scored: Path, amount: str, n: int) -> None:
    ordered = stats(scored, by="conversation_id").sort("mean_logprob", descending=True)["conversation_id"]
    assert sorted(_kept(select(scored, keep_top=amount, by="mean_logprob"))) == sorted(ordered[:n])
    assert sorted(_kept(select(scored, keep_bottom=amount, by="mean_logprob"))) == sorted(
        ordered[len(ordered) - n :]
    )


def test_the_top_is_taken_of_what_the_condition_leaves(scored: Path) -> None:
    found = select(scored, where="metadata.source = 's0'", keep_top="2", by="n_tokens").frame
    assert sorted(found.filter(pl.col("reason").is_null())["conversation_id"]) == ["c6", "c8"]


@pytest.mark.parametrize("is_top", [True, False])
@pytest.mark.parametrize("dtype", [np.int64, np.float64, np.uint32])
def test_the_first_are_those_of_a_stable_sort(is_top: bool, dtype: type) -> None:
    values = np.random.default_rng(5).integers(0, 6, 40).astype(dtype)
    for n in range(len(values) + 1):
        keys = values.max() - values if is_top else values
        expected = np.isin(np.arange(len(values)), np.argsort(keys, kind="stable")[:n])
        assert np.array_equal(first_ones(values, n, is_top=is_top), expected)


def test_of_equal_ones_the_first_are_kept(scored: Path) -> None:
    found = select(scored, keep_top="2", by="n_messages").frame
    assert (
        found.filter(pl.col("reason").is_null())["conversation_id"].to_list()
        == found["conversation_id"].head(2).to_list()
    )


def test_numbers_of_another_model_are_those_of_diff(
    scored: Path, conversation: Make, write_dataset: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [
        conversation(f"c{i}", (("user", 2 + i), ("assistant", 3 + i % 3), ("user", 1)), seed=i, model=1)
        for i in range(9)
    ]
    student = write_dataset(others, n_parts=3)
    # Batches of about two conversations, which end elsewhere than the parts.
    monkeypatch.setattr("tokscore.analytics.comparison.compare.BATCH_TOKENS", 20)
    wanted = diff(scored, student, by="conversation_id,role").filter(role="assistant")
    median = wanted["gjs_0.5.upper"].median()
    found = select(scored, where=f"gjs_0.5.upper > {median}", role="assistant", against=student)
    assert sorted(_kept(found)) == sorted(wanted.filter(pl.col("gjs_0.5.upper") > median)["conversation_id"])


def test_branches_in_two_batches_are_compared_together(
    conversation: Make, write_dataset: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokscore.analytics.comparison.compare.BATCH_TOKENS", 1)
    sides = [
        write_dataset(
            [
                conversation(f"c{i}", seed=i + 10 * branch, model=model)._replace(branch=branch)
                for i in range(3)
                for branch in range(3)
            ]
        )
        for model in (0, 1)
    ]
    wanted = diff(*sides, by="conversation_id").sort("conversation_id")
    found = select(sides[0], where="kl_teacher_student.lower > 0 or n_tokens > 0", against=sides[1]).frame
    assert found["conversation_id"].to_list() == wanted["conversation_id"].to_list()
    np.testing.assert_allclose(found["kl_teacher_student.lower"], wanted["kl_teacher_student.lower"])


def test_conversations_that_the_other_dataset_lacks_have_no_number(
    conversation: Make, write_dataset: Make
) -> None:
    sides = [
        write_dataset([conversation(f"c{i}", seed=i) for i in range(first, 6)], n_parts=2) for first in (0, 3)
    ]
    found = select(sides[0], keep_top="100%", by="log_ratio", against=sides[1])
    assert sorted(_kept(found)) == ["c3", "c4", "c5"]
    assert found.reasons() == {"no log_ratio": 3}


def test_a_full_disk_names_the_folder(scored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_arguments: object, **_settings: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pyarrow.parquet.ParquetWriter.write_table", full)
    with pytest.raises(TokscoreError, match=r"No space left on device.\nSet TMPDIR"):
        select(scored, where="n_tokens > 1")


def test_branches_count_together(conversation: Make, write_dataset: Make) -> None:
    one = conversation("a", seed=1)
    root = write_dataset([one, one._replace(branch=1), conversation("b", seed=2)])
    frame = _metrics(root)
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
