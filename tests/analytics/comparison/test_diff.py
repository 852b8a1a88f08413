"""Reports over two score datasets."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from tokscore.analytics import Comparison, GroupBy, breaches, parse_gate
from tokscore.analytics import diff_report as diff
from tokscore.dataset.errors import InputError, UsageError
from tokscore.dataset.schema import DatasetKind

Make = Callable[..., Any]  # fixtures of conftest.py, which tests cannot import
HASHED = {"sha256": "a" * 64}


@pytest.fixture
def teacher(conversation: Make) -> list[Any]:
    roles = [("user", 4), ("assistant", 6), ("tool", 2), ("assistant", 3)]
    return [conversation(f"c{index}", roles[: 1 + index % 4], seed=index) for index in range(9)]


@pytest.fixture
def student(conversation: Make, teacher: list[Any]) -> list[Any]:
    return [
        conversation(scored.conversation_id, scored.messages, seed=seed, model=1)
        for seed, scored in enumerate(teacher)
    ]


def kl(log_p: NDArray[np.float64], log_q: NDArray[np.float64]) -> NDArray[np.float64]:
    total: NDArray[np.float64] = (np.exp(log_p) * (log_p - log_q)).sum(axis=1)
    return total


def test_whole_vocabularies_give_the_exact_value_of_every_token(
    teacher: list[Any], student: list[Any], write_dataset: Make, tmp_path: Path
) -> None:
    sides = write_dataset(teacher, top_k=50), write_dataset(student, top_k=50)
    report = diff(*sides, alpha=0.3, out=tmp_path / "out")
    rows = pl.read_parquet(tmp_path / "out/tokens.parquet")
    log_p = np.concatenate([scored.logprobs[1:] for scored in teacher])
    log_q = np.concatenate([scored.logprobs[1:] for scored in student])
    log_m = np.log(0.3 * np.exp(log_p) + 0.7 * np.exp(log_q))
    exact = {
        "kl_teacher_student": kl(log_p, log_q),
        "kl_student_teacher": kl(log_q, log_p),
        "gjs_0.3": 0.3 * kl(log_p, log_m) + 0.7 * kl(log_q, log_m),
        "skew_kl_0.3": kl(log_p, log_m),
        "total_variation": np.abs(np.exp(log_p) - np.exp(log_q)).sum(axis=1) / 2,
        "entropy_teacher": -(np.exp(log_p) * log_p).sum(axis=1),
    }
    for name, values in exact.items():
        mean = report.total.intervals[name]
        assert mean.lower is not None
        assert mean.upper is not None
        assert mean.lower <= values.mean() <= mean.upper
        lower, upper = rows[f"{name}_lower"].to_numpy(), rows[f"{name}_upper"].to_numpy()
        assert (lower <= values).all()
        assert (values <= upper).all()
        # The logprobs are float32.
        np.testing.assert_allclose(lower, values, atol=1e-5)
        np.testing.assert_allclose(upper, values, atol=1e-5)
    assert report.total.unresolved == pytest.approx(0.0, abs=1e-6)


def test_means_of_a_group_are_those_of_its_tokens(
    teacher: list[Any], student: list[Any], write_dataset: Make
) -> None:
    report = diff(write_dataset(teacher), write_dataset(student))
    (tool,) = [row for row in report.groups if row.group == "tool"]
    places = [(index, position) for index in range(9) if index % 4 >= 2 for position in (11, 12)]

    def mean(scored: list[Any]) -> float:
        values = [
            scored[index].logprobs[position, scored[index].token_ids[position]] for index, position in places
        ]
        return float(np.mean(values))

    assert tool.n_tokens == len(places)
    assert tool.teacher_logprob == pytest.approx(mean(teacher), abs=1e-6)
    assert tool.student_logprob == pytest.approx(mean(student), abs=1e-6)
    assert tool.log_ratio == pytest.approx(mean(teacher) - mean(student), abs=1e-6)
    top1 = [teacher[i].logprobs[p].argmax() == student[i].logprobs[p].argmax() for i, p in places]
    assert tool.top1_agreement == np.mean(top1)


def test_tokens_without_a_logprob_are_counted_apart(
    teacher: list[Any], student: list[Any], write_dataset: Make
) -> None:
    report = diff(write_dataset(teacher), write_dataset(student))
    (template,) = [row for row in report.groups if row.group is None]
    assert (template.n_tokens, template.n_unscored) == (0, 9)
    assert template.teacher_logprob is None
    assert (report.total.n_tokens, report.total.n_unscored) == (sum(len(c.token_ids) - 1 for c in teacher), 9)


def test_parts_and_their_order_change_no_number(
    teacher: list[Any], student: list[Any], write_dataset: Make
) -> None:
    whole = diff(write_dataset(teacher), write_dataset(student))
    divided = diff(write_dataset(teacher, n_parts=3), write_dataset(student, n_parts=3))
    shuffled = diff(write_dataset(teacher[::-1], n_parts=2), write_dataset(student))
    assert whole == divided == shuffled


def test_batches_change_no_number(
    teacher: list[Any], student: list[Any], write_dataset: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = write_dataset(teacher), write_dataset(student)
    whole = diff(*paths)
    monkeypatch.setattr("tokscore.analytics.comparison.compare.BATCH_TOKENS", 1)
    assert diff(*paths) == whole


def test_a_role_without_tokens_has_count_0_and_no_means(conversation: Make, write_dataset: Make) -> None:
    ours = [conversation("c", [("system", 0), ("user", 3)])]
    path = write_dataset(ours)
    system, user, template = diff(path, path).groups
    assert (system.group, user.group, template.group) == ("system", "user", None)
    assert (system.n_tokens, system.teacher_logprob, system.gjs.lower) == (0, None, None)


def test_a_dataset_against_itself_has_exact_zeros(teacher: list[Any], write_dataset: Make) -> None:
    report = diff(write_dataset(teacher), write_dataset(teacher))
    for row in report.rows():
        if not row.n_tokens:
            continue
        assert row.log_ratio == 0.0
        assert row.top1_agreement == 1.0
        for name, interval in row.intervals.items():
            assert interval.lower == 0.0 or name.startswith("entropy")
        assert (row.log_ratio, row.delta_p) == (0.0, 0.0)
        assert row.gjs.upper is not None
        assert row.gjs.upper > 0


def test_every_ratio_of_a_dataset_to_itself_is_1(teacher: list[Any], write_dataset: Make) -> None:
    path = write_dataset(teacher)
    for batch in Comparison(path, path):
        np.testing.assert_array_equal(
            np.exp(batch.measures["teacher_logprob"] - batch.measures["student_logprob"]), 1.0
        )
    off = diff(path, path).total.off_policy
    assert (off.mean_ratio, off.effective_sample_size, off.chi2) == (1.0, 1.0, 0.0)
    assert set(off.log_ratio) == {0.0}
    assert (off.outside_0_9_1_1, off.clipped_low, off.clipped_high) == (0.0, 0.0, 0.0)
    assert (off.sequence_sum, off.sequence_effective_sample_size) == ((0.0, 0.0, 0.0), 1.0)


def test_upper_limits_are_0_where_manifests_prove_the_same_run(
    teacher: list[Any], write_dataset: Make
) -> None:
    report = diff(write_dataset(teacher, model=HASHED), write_dataset(teacher, model=HASHED))
    assert report.is_self
    for interval in (report.total.kl_teacher_student, report.total.kl_student_teacher, report.total.gjs):
        assert interval == (0.0, 0.0, 0)


def test_upper_limits_stay_where_the_same_run_stored_other_numbers(
    teacher: list[Any], student: list[Any], write_dataset: Make
) -> None:
    report = diff(write_dataset(teacher, model=HASHED), write_dataset(student, model=HASHED))
    assert report.is_self
    assert report.total.kl_teacher_student.upper is None


def test_another_plan_proves_nothing(teacher: list[Any], write_dataset: Make) -> None:
    report = diff(write_dataset(teacher, model=HASHED), write_dataset(teacher, n_parts=2, model=HASHED))
    assert not report.is_self
    assert report.total.kl_teacher_student.upper is None


def test_json_marks_the_upper_limits_that_are_not_there(
    teacher: list[Any], student: list[Any], write_dataset: Make
) -> None:
    report = diff(write_dataset(teacher), write_dataset(student))
    total = json.loads(json.dumps(report.to_dict(), allow_nan=False))["total"]
    n_tokens = total["n_tokens"]
    assert total["kl_teacher_student"] == {
        "lower": report.total.kl_teacher_student.lower,
        "upper": None,
        "n_unbounded": n_tokens,
        "unbounded": True,
    }
    assert not total["gjs_0.5"]["unbounded"]
    assert total["gjs_0.5"]["lower"] < total["gjs_0.5"]["upper"]


@pytest.mark.parametrize("by", [*GroupBy, "role,source,is_sampled", "metadata.absent"])
def test_every_grouping_has_the_same_total(
    teacher: list[Any], student: list[Any], write_dataset: Make, by: str
) -> None:
    paths = write_dataset(teacher), write_dataset(student)
    report = diff(*paths, by=by)
    assert report.total == diff(*paths).total
    assert sum(row.n_tokens for row in report.groups) == report.total.n_tokens


def test_messages_are_ordered_by_number(teacher: list[Any], write_dataset: Make) -> None:
    path = write_dataset(teacher)
    assert [row.group for row in diff(path, path, by="message_index").groups] == [0, 1, 2, 3, -1]


def test_per_token_intervals_come_with_their_place(
    teacher: list[Any], student: list[Any], write_dataset: Make
) -> None:
    (batch,) = Comparison(write_dataset(teacher), write_dataset(student), columns=("role", "source"))
    assert [place.conversation_id for place in batch.places] == [f"c{index}" for index in range(9)]
    mine = batch.conversations == 3
    np.testing.assert_array_equal(batch.positions[mine], np.arange(1, 16))
    assert {"token_id", "role", "source"} <= set(batch.attribution.column_names)
    assert batch.attribution["role"].to_pylist()[batch.starts[4] - 1] == "assistant"
    log_p, log_q = teacher[3].logprobs[1:], student[3].logprobs[1:]
    assert (batch.measures.of("kl_teacher_student").lower[mine] <= kl(log_p, log_q)).all()


def test_ids_beyond_the_smaller_vocabulary_are_counted(
    conversation: Make, teacher: list[Any], write_dataset: Make
) -> None:
    padded = [
        conversation(scored.conversation_id, scored.messages, seed=seed, model=1, vocab_size=60)
        for seed, scored in enumerate(teacher)
    ]
    report = diff(write_dataset(teacher), write_dataset(padded, model={"vocab_size": 60}))
    expected = sum(
        int((np.argsort(-scored.logprobs[1:], axis=1)[:, :5] >= 50).any(axis=1).sum()) for scored in padded
    )
    assert report.total.n_beyond_vocabulary == expected > 0


def test_realised_logprobs_and_ranks_are_the_same_for_any_k(
    teacher: list[Any], student: list[Any], write_dataset: Make
) -> None:
    batches = [
        next(iter(Comparison(write_dataset(teacher, top_k=k), write_dataset(student, top_k=k))))
        for k in (1, 50)
    ]
    for name in ("teacher_logprob", "student_logprob"):
        np.testing.assert_array_equal(*(batch.measures[name] for batch in batches))
    for name in ("teacher_ranks", "student_ranks", "teacher_top"):
        np.testing.assert_array_equal(*(getattr(batch, name) for batch in batches))


def test_lists_of_other_lengths_are_compared(
    teacher: list[Any], student: list[Any], write_dataset: Make
) -> None:
    narrow = diff(write_dataset(teacher, top_k=1), write_dataset(student, top_k=5)).total
    wide = diff(write_dataset(teacher, top_k=20), write_dataset(student, top_k=20)).total
    assert narrow.teacher_logprob == wide.teacher_logprob
    assert narrow.gjs.lower is not None
    assert wide.gjs.lower is not None
    assert narrow.gjs.lower < wide.gjs.lower


def test_without_lists_the_realised_token_still_counts(
    teacher: list[Any], student: list[Any], write_dataset: Make
) -> None:
    total = diff(write_dataset(teacher, top_k=0), write_dataset(student, top_k=0)).total
    assert total.top1_agreement is None
    assert total.gjs.lower is not None
    assert total.gjs.lower > 0


@pytest.mark.parametrize("value", [math.nan, 0.5])
def test_a_logprob_that_is_none_is_refused_with_its_place(
    teacher: list[Any], write_dataset: Make, value: float
) -> None:
    def spoil(scores: dict[str, pa.Array]) -> dict[str, pa.Array]:
        values = scores["logprob"].to_pylist()
        if len(values) == 13:  # the first of them is c2
            values[2] = value
        return scores | {"logprob": pa.array(values, pa.float32())}

    spoiled = write_dataset(teacher, columns=spoil)
    place = f"conversation 'c2', position 2: the logprob of id {teacher[2].token_ids[2]} is {value:g}"
    with pytest.raises(InputError, match=place) as caught:
        diff(write_dataset(teacher), spoiled)
    assert str(spoiled) in str(caught.value)


def ruled_out(index: int, dataset: list[Any]) -> Callable[[dict[str, pa.Array]], dict[str, pa.Array]]:
    """Gives token `index` of c2, whose columns are the first of 13 rows, the logprob -inf, lists included."""

    def change(scores: dict[str, pa.Array]) -> dict[str, pa.Array]:
        values, ids = scores["logprob"].to_pylist(), scores["top_ids"].to_pylist()
        logs = scores["top_logprobs"].to_pylist()
        if len(values) == 13:
            values[index] = -math.inf
            token_id = int(dataset[2].token_ids[index])
            if token_id in ids[index]:
                logs[index][ids[index].index(token_id)] = -math.inf
        return scores | {
            "logprob": pa.array(values, pa.float32()),
            "top_logprobs": pa.array(logs, pa.list_(pa.float32())),
        }

    return change


def test_a_token_that_one_model_rules_out_is_compared(
    teacher: list[Any], student: list[Any], write_dataset: Make, tmp_path: Path
) -> None:
    mine = write_dataset(teacher, top_k=1, columns=ruled_out(4, teacher))
    theirs = write_dataset(student, top_k=1, columns=ruled_out(2, teacher))
    report = diff(mine, theirs, out=tmp_path / "out")
    total = report.total
    assert total.log_ratio is None
    assert total.kl_teacher_student.is_infinite
    assert total.gjs.upper <= math.log(2)
    assert total.off_policy.sequence_sum.mean is None
    tokens = pl.read_parquet(tmp_path / "out" / "tokens.parquet")
    assert np.isposinf(tokens["log_ratio"].to_numpy()).sum() == 2  # of two conversations of this length
    confidence = {each.name: each for each in total.confidence}
    assert confidence["log_ratio"].upper is None
    assert confidence["gjs_0.5"].upper is not None
    json.dumps(report.to_dict(), allow_nan=False)
    gates = [parse_gate(text, report.by) for text in ("kl_teacher_student.lower > 9", "log_ratio > 0")]
    found = breaches(report, gates)
    assert found[0].found == math.inf
    assert "a model rules a token out" in str(found[1])


def test_a_token_that_both_models_rule_out_is_refused(teacher: list[Any], write_dataset: Make) -> None:
    sides = [write_dataset(teacher, columns=ruled_out(2, teacher)) for _ in range(2)]
    with pytest.raises(InputError, match=r"c2', position 2: both models give id \d+ the logprob -inf"):
        diff(*sides)


def test_lists_and_logprobs_of_other_lengths_are_refused(teacher: list[Any], write_dataset: Make) -> None:
    def spoil(scores: dict[str, pa.Array]) -> dict[str, pa.Array]:
        lists = [None if row is None else row[:-1] for row in scores["top_ids"].to_pylist()]
        return scores | {"top_ids": pa.array(lists, pa.list_(pa.int32()))}

    spoiled = write_dataset(teacher, columns=spoil)
    with pytest.raises(
        InputError, match=r"conversation 'c0', position 1: top_ids has 4 entries and top_logprobs 5"
    ):
        diff(spoiled, spoiled)


def test_a_token_dataset_is_refused(teacher: list[Any], write_dataset: Make) -> None:
    path = write_dataset(teacher, kind=DatasetKind.TOKENS)
    with pytest.raises(InputError, match="is a dataset of tokens; expected scores"):
        diff(path, path)


def test_unknown_groupings_are_refused(teacher: list[Any], write_dataset: Make) -> None:
    path = write_dataset(teacher)
    with pytest.raises(UsageError, match="cannot group by 'colour'; expected role, message_index"):
        diff(path, path, by="colour")


def test_alpha_is_checked_before_anything_is_read(write_dataset: Make, tmp_path: Any) -> None:
    with pytest.raises(UsageError, match="alpha is 1; expected"):
        diff(tmp_path / "absent", tmp_path / "absent", alpha=1.0)


def test_contexts_depend_on_no_order_and_are_shown_once(conversation: Make, write_dataset: Make) -> None:
    def copies(model: int) -> list[Any]:
        same = conversation("c", [("user", 3), ("assistant", 9)], seed=1, model=model)
        other = conversation("other", [("user", 3), ("assistant", 9)], seed=2, model=model)
        return [*(same._replace(conversation_id=f"c{i:02}") for i in range(30)), other]

    sides = copies(0), copies(1)
    reports = [
        diff(*(write_dataset(side[::step], n_parts=n_parts) for side in sides))
        for step, n_parts in ((1, 1), (-1, 1), (1, 3))
    ]
    contexts = [report.contexts for report in reports]
    assert contexts[0] == contexts[1] == contexts[2]
    assert len(contexts[0]) == 10
    assert {each.conversation_id for each in contexts[0]} == {"c00", "other"}
    lower = [each.lower for each in contexts[0]]
    assert lower == sorted(lower, reverse=True)


def test_alphas_of_one_name_are_refused(teacher: list[Any], student: list[Any], write_dataset: Make) -> None:
    sides = write_dataset(teacher), write_dataset(student)
    with pytest.raises(UsageError, match=r"have one name, 0\.123456; expected weights that differ"):
        diff(*sides, alpha=[0.1234561, 0.1234559])
    assert diff(*sides, alpha=[0.3, 0.3]).alphas == (0.3,)
