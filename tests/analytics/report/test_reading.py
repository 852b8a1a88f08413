"""Conversations of score datasets with what the models say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.rewriting import rewrite
from tokscore.analytics.comparison.compare import Comparison
from tokscore.analytics.report import write_diff_report
from tokscore.analytics.report.conversation.scored import model_scores
from tokscore.analytics.report.conversation.token_texts import TokenText, TokenTexts
from tokscore.analytics.report.reading import ComparedDatasets, find_scored, open_scores, read_scored
from tokscore.dataset import writing as parts
from tokscore.dataset.choices import OnError
from tokscore.dataset.errors import InputError


def test_every_interval_is_that_of_diff(scores: Any) -> None:
    compared = {(c.conversation_id, c.branch): c for c in ComparedDatasets(*scores, alpha=0.3)}
    n_compared = 0
    for batch in Comparison(*scores, alphas=(0.3,)):
        expected = batch.measures.of("gjs", 0.3)
        for side in range(3):
            mine = np.concatenate([compared[place.key].gjs[side] for place in batch.places])
            np.testing.assert_array_equal(mine[batch.rows], expected[side])
            assert np.isnan(np.delete(mine, batch.rows)).all()
        n_compared += len(batch.places)
    assert n_compared == len(compared) == 3


def test_a_conversation_found_alone_is_as_in_the_stream(scores: Any) -> None:
    compared = ComparedDatasets(*scores)
    for streamed in compared:
        alone = compared.find(streamed.conversation_id, streamed.branch)
        np.testing.assert_array_equal(alone.teacher.logprobs, streamed.teacher.logprobs)
        np.testing.assert_array_equal(alone.gjs.lower, streamed.gjs.lower)
        assert alone.messages == streamed.messages


def test_a_conversation_is_read_from_the_row_groups_that_hold_it(
    scores: Any, write_scores: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "ROW_GROUP_ROWS", 7)
    samples = [(f"c{i}", (("user", tuple(range(i + 1))),)) for i in range(9)]
    dataset = open_scores(write_scores(tmp_path / "split", samples))
    for streamed in read_scored(dataset):
        alone = find_scored(dataset, streamed.conversation_id)
        np.testing.assert_array_equal(alone.token_ids, streamed.token_ids)
        np.testing.assert_array_equal(alone.teacher.top_ids, streamed.teacher.top_ids)


def test_a_dataset_against_itself_has_no_divergence(scores: Any) -> None:
    found = ComparedDatasets(scores.teacher, scores.teacher).find("long")
    assert np.nanmax(found.gjs.lower) == 0


def test_a_bad_conversation_is_left_out_where_errors_are_skipped(
    scores: Any, tmp_path: Any, write_scores: Any
) -> None:
    samples = [(f"c{i}", (("user", tuple(range(i + 3))),)) for i in range(3)]
    roots = [write_scores(tmp_path / name, samples, noise=i) for i, name in enumerate("ts")]
    path = roots[1] / "scores" / "part-00000.parquet"
    table = pq.read_table(path)
    logprobs = table["logprob"].to_pylist()
    logprobs[5] = 0.5
    column = pa.array(logprobs, pa.float32())
    rewrite(table.set_column(table.schema.get_field_index("logprob"), "logprob", column), path)
    with pytest.raises(InputError, match=r"conversation 'c1', position 1: .* expected at most 0"):
        list(ComparedDatasets(*roots))
    compared = ComparedDatasets(*roots, on_error=OnError.SKIP)
    assert [c.conversation_id for c in compared] == ["c0", "c2"]
    assert [skipped.conversation_id for skipped in compared.comparison.pairing.skipped] == ["c1"]


@pytest.mark.slow
def test_a_token_that_one_model_rules_out_is_on_the_page(tmp_path: Any, write_scores: Any) -> None:
    pytest.importorskip("altair")
    samples = [("c", (("user", (1, 2, 3, 4, 5)),))]
    roots = [write_scores(tmp_path / name, samples, noise=i) for i, name in enumerate("ts")]
    for root, row in zip(roots, (2, 4), strict=True):
        path = root / "scores" / "part-00000.parquet"
        table = pq.read_table(path)
        logprobs = table["logprob"].to_pylist()
        logprobs[row] = -np.inf
        column = pa.array(logprobs, pa.float32())
        rewrite(table.set_column(table.schema.get_field_index("logprob"), "logprob", column), path)
    found = ComparedDatasets(*roots).find("c")
    assert found.teacher.logprobs[2] == found.student.logprobs[4] == -np.inf
    assert 0 < np.nanmax(found.gjs.upper) <= np.log(2) + 1e-9
    write_diff_report(*roots, tmp_path / "page.html")
    assert "∞" in (tmp_path / "page.html").read_text("utf-8")


def test_nan_is_refused() -> None:
    lists = pa.array([None], pa.list_(pa.int32()))
    table = pa.table(
        {
            "logprob": pa.array([float("nan")]),
            "rank": pa.array([1]),
            "entropy": pa.array([1.0]),
            "top_ids": lists,
            "top_logprobs": lists.cast(pa.list_(pa.float32())),
        }
    )
    with pytest.raises(InputError, match="column logprob holds NaN"):
        model_scores(table)


def test_texts_of_bytes_and_of_unknown_ids_are_names(scores: Any) -> None:
    texts = TokenTexts(open_scores(scores.teacher))
    assert texts.of([1, 9, 9_999, 1]) == [
        TokenText("Hello", True),
        TokenText("\\xe4\\xbd", False),
        TokenText("[id 9999]", False),
        TokenText("Hello", True),
    ]


def test_texts_are_found_in_a_vocabulary_without_order(write_scores: Any, tmp_path: Any) -> None:
    root = write_scores(tmp_path / "scores", [("a", (("user", (1,)),))])
    table = pq.read_table(root / "vocab.parquet")
    rewrite(table.take(list(range(table.num_rows))[::-1]), root / "vocab.parquet")
    assert TokenTexts(open_scores(root)).of([1, 2]) == [TokenText("Hello", True), TokenText(" world", True)]
