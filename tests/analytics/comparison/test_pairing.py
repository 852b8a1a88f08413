"""Which conversations two datasets share, and when they cannot be compared."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.rewriting import rewrite
from tokscore.analytics import Comparison
from tokscore.analytics.comparison.pairing import Pairing
from tokscore.dataset import writing as parts
from tokscore.dataset.choices import OnError
from tokscore.dataset.errors import InputError
from tokscore.dataset.reading import Dataset
from tokscore.dataset.schema import DatasetKind

Make = Callable[..., Any]  # fixtures of conftest.py, which tests cannot import


def pairing(teacher: Path, student: Path, on_error: OnError = OnError.FAIL) -> Pairing:
    return Pairing(
        Dataset(teacher),
        Dataset(student),
        teacher_columns=["logprob"],
        student_columns=["logprob"],
        on_error=on_error,
    )


def test_conversations_in_another_order_and_other_parts_are_found(
    conversation: Make, write_dataset: Make
) -> None:
    ours = [conversation(f"c{index}", seed=index) for index in range(7)]
    teacher, student = write_dataset(ours, n_parts=2), write_dataset(ours[::-1], n_parts=3)
    pairs = list(pairing(teacher, student))
    assert sorted(pair.conversation_id for pair in pairs) == [f"c{index}" for index in range(7)]
    for pair in pairs:
        assert pair.teacher["logprob"].equals(pair.student["logprob"])


def test_conversations_on_one_side_are_counted(conversation: Make, write_dataset: Make) -> None:
    ours = [conversation(f"c{index}", seed=index) for index in range(5)]
    found = pairing(write_dataset(ours[:4]), write_dataset(ours[1:]))
    assert [pair.conversation_id for pair in list(found)] == ["c1", "c2", "c3"]
    assert (found.n_conversations, found.n_only_teacher, found.n_only_student) == (3, 1, 1)


def test_conversations_that_span_row_groups_come_whole(
    conversation: Make, write_dataset: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "ROW_GROUP_ROWS", 5)
    ours = [conversation(f"c{index}", [("user", 3 + 4 * index)], seed=index) for index in range(5)]
    teacher = write_dataset(ours)
    for pair, expected in zip(list(pairing(teacher, write_dataset(ours))), ours, strict=True):
        assert pair.teacher["token_id"].to_pylist() == expected.token_ids.tolist()


def test_equal_orders_read_every_row_group_once(
    conversation: Make, write_dataset: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "ROW_GROUP_ROWS", 5)
    path = write_dataset([conversation(f"c{index}", seed=index) for index in range(9)], n_parts=2)
    reads = []
    read_row_groups = pq.ParquetFile.read_row_groups

    def count(file: pq.ParquetFile, groups: list[int], columns: list[str], **options: object) -> pa.Table:
        reads.extend(groups if "token_id" in columns else [])
        return read_row_groups(file, groups, columns=columns, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_groups", count)
    assert len(list(pairing(path, path))) == 9
    n_groups = sum(pq.read_metadata(file).num_row_groups for file in Dataset(path).files("scores"))
    assert n_groups > 9
    assert len(reads) == 2 * n_groups


def test_other_token_ids_are_refused_with_the_first_place(conversation: Make, write_dataset: Make) -> None:
    ours = conversation("c")
    other_ids = ours.token_ids.copy()
    other_ids[[4, 6]] = [48, 49]
    teacher, student = write_dataset([ours]), write_dataset([ours._replace(token_ids=other_ids)])
    message = rf"conversation 'c', position 4: token id is {ours.token_ids[4]} in .* and 48 in"
    with pytest.raises(InputError, match=message) as caught:
        list(pairing(teacher, student))
    assert "same template and kwargs?" in str(caught.value)


def test_a_shorter_sequence_is_refused(conversation: Make, write_dataset: Make) -> None:
    ours = conversation("c", [("user", 3)])
    longer = conversation("c", [("user", 4)])
    longer = longer._replace(token_ids=np.append(ours.token_ids, np.int32(7)))
    with pytest.raises(InputError, match=r"position 4: token id is the end in .* and 7 in"):
        list(pairing(write_dataset([ours]), write_dataset([longer])))


def test_another_tokenizer_is_refused(conversation: Make, write_dataset: Make) -> None:
    ours = [conversation("c")]
    teacher, student = write_dataset(ours), write_dataset(ours, tokenizer={"name": "B", "sha256": "f" * 64})
    with pytest.raises(InputError, match=r"the tokenizer is tok \(sha256 tttttttttttt\) and B \(sha256 ffff"):
        pairing(teacher, student)


def test_another_name_of_the_same_tokenizer_is_fine(conversation: Make, write_dataset: Make) -> None:
    ours = [conversation("c")]
    assert len(list(pairing(write_dataset(ours), write_dataset(ours, tokenizer={"name": "B"})))) == 1


@pytest.mark.parametrize(
    ("name", "here", "there"), [("temperature", 1.0, 0.7), ("logprob_mode", "raw", "processed")]
)
def test_other_settings_are_refused(
    conversation: Make, write_dataset: Make, name: str, here: object, there: object
) -> None:
    ours = [conversation("c")]
    teacher, student = write_dataset(ours, settings={name: here}), write_dataset(ours, settings={name: there})
    with pytest.raises(InputError, match=rf"settings\.{name} is {here!r} and {there!r}"):
        pairing(teacher, student)


def test_no_shared_conversation_is_refused(conversation: Make, write_dataset: Make) -> None:
    teacher, student = write_dataset([conversation("a")]), write_dataset([conversation("b")])
    with pytest.raises(InputError, match=r"share no conversation \(1 and 1\)"):
        list(pairing(teacher, student))


def test_a_missing_part_is_refused(conversation: Make, write_dataset: Make) -> None:
    root = write_dataset([conversation("a"), conversation("b")], n_parts=2)
    (root / DatasetKind.SCORES / "part-00001.parquet").unlink()
    with pytest.raises(InputError, match="1 of 2 parts are missing"):
        pairing(root, root)


def test_a_cut_token_table_is_refused(conversation: Make, write_dataset: Make) -> None:
    short, long = write_dataset([conversation("a")]), write_dataset([conversation("a", [("user", 20)])])
    shutil.copy(short / "scores/part-00000.parquet", long / "scores/part-00000.parquet")
    with pytest.raises(InputError, match="has 8 rows; expected 21, the tokens of its conversations"):
        list(pairing(long, long))


def test_a_conversations_table_of_another_plan_is_refused(conversation: Make, write_dataset: Make) -> None:
    mine, other = write_dataset([conversation("a")]), write_dataset([conversation("a")], top_k=3)
    shutil.copy(other / "conversations/part-00000.parquet", mine / "conversations/part-00000.parquet")
    with pytest.raises(InputError, match=r"conversations/part-00000\.parquet belongs to another plan"):
        list(pairing(mine, mine))


def test_a_damaged_page_is_named(conversation: Make, write_dataset: Make) -> None:
    root = write_dataset([conversation("a", [("user", 400)])])
    path = root / "scores/part-00000.parquet"
    content = bytearray(path.read_bytes())
    column = pq.read_metadata(path).row_group(0).column(3)
    assert column.path_in_schema == "token_id"
    content[column.data_page_offset + column.total_compressed_size - 40] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"scores/part-00000.parquet is damaged"):
        list(pairing(root, root))


def swapped(path: Path) -> None:
    """Exchange two rows of a token table, keeping its metadata."""
    table = pq.read_table(path)
    order = np.arange(table.num_rows)
    order[[2, 3]] = order[[3, 2]]
    rewrite(table.take(pa.array(order)).replace_schema_metadata(table.schema.metadata), path)


def test_rows_out_of_order_are_refused_or_counted(conversation: Make, write_dataset: Make) -> None:
    ours = [conversation("a"), conversation("b")]
    teacher, student = write_dataset(ours), write_dataset(ours)
    swapped(student / "scores/part-00000.parquet")
    with pytest.raises(InputError, match="conversation 'a': row 2 has position 3; expected rows in order"):
        list(pairing(teacher, student))
    found = pairing(teacher, student, OnError.SKIP)
    assert [pair.conversation_id for pair in list(found)] == ["b"]
    assert [skipped.conversation_id for skipped in found.skipped] == ["a"]


def test_no_row_group_outlives_a_comparison(conversation: Make, write_dataset: Make) -> None:
    path = write_dataset([conversation(f"c{i}", seed=i) for i in range(4)])
    list(Comparison(path, path, alphas=[0.5]))  # what is made once and stays
    gc.collect()
    gc.disable()
    try:
        before = pa.total_allocated_bytes()
        for _ in range(3):
            list(Comparison(path, path, alphas=[0.5]))
        assert pa.total_allocated_bytes() == before
    finally:
        gc.enable()
