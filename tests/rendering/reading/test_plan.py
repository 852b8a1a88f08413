from __future__ import annotations

import gzip
import json
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tokscore.dataset.errors import InputError
from tokscore.rendering.reading.plan import plan_files, read_lines


def write(path: Path, *lines: str) -> str:
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


def ids(path: str, **settings: int) -> list[str]:
    plan = plan_files([path], **settings)
    return [line.conversation_id for part in plan.parts for line in read_lines(plan, part)]


def test_a_record_without_id_is_named_by_file_and_line(tmp_path: Path) -> None:
    path = write(tmp_path / "c.jsonl", '{"id": "x"}', "", "{}", '{"id": 7}', "not json")
    assert ids(path) == ["x", "c.jsonl:3", "7", "c.jsonl:5"]


@pytest.mark.parametrize(
    "field",
    [
        '"group": {"x": 1}',
        '"group": 1.5',
        '"instance_id": 5',
        '"custom_id": 7',
        '"logprobs": [-Infinity, NaN]',
    ],
)
def test_a_record_keeps_its_id_whatever_the_other_fields_hold(tmp_path: Path, field: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"id": "own", ' + field + "}\n")
    plan = plan_files([str(path)])
    assert [line.conversation_id for line in read_lines(plan, plan.parts[0])] == ["own"]


def test_repeated_ids_are_numbered(tmp_path: Path) -> None:
    path = write(tmp_path / "c.jsonl", *['{"id": "x"}'] * 3, '{"id": "x#2"}')
    assert ids(path) == ["x", "x#2", "x#3", "x#2#2"]
    assert ids(path, part_bytes=1) == ["x", "x#2", "x#3", "x#2#2"]


def test_numbering_repeated_ids_takes_linear_time(tmp_path: Path) -> None:
    path = write(tmp_path / "c.jsonl", *['{"id": "x"}'] * 20_000, '{"id": "x#20001"}', '{"id": "x"}')
    start_s = time.process_time()
    plan = plan_files([path])
    assert time.process_time() - start_s < 5  # a minute where every number is tried for every id
    assert plan.renamed[-2:] == (("x", "x#20000"), ("x", "x#20002"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=20),
    part_bytes=st.integers(1, 60),
    end=st.booleans(),
)
def test_parts_cover_every_line_once(tmp_path: Path, sizes: list[int], part_bytes: int, end: bool) -> None:
    lines = [
        json.dumps({"id": f"{i}", "pad": "é" * size}, ensure_ascii=False) for i, size in enumerate(sizes)
    ]
    path = tmp_path / "c.jsonl"
    path.write_text("\n".join(lines) + ("\n" if end else ""))
    plan = plan_files([str(path)], part_bytes=part_bytes)
    read = [line for part in plan.parts for line in read_lines(plan, part)]
    assert [line.conversation_id for line in read] == [str(i) for i in range(len(sizes))]
    assert [line.number for line in read] == list(range(1, len(sizes) + 1))
    assert plan.parts[0].start == 0
    assert all(a.stop == b.start for a, b in zip(plan.parts, plan.parts[1:], strict=False))
    assert plan.n_records == len(sizes)


def test_no_directory_of_the_machine_enters_the_plan(tmp_path: Path) -> None:
    plan = plan_files([write(tmp_path / "c.jsonl", "{}")])
    assert str(tmp_path) not in repr((plan.inputs, plan.parts))


@pytest.mark.parametrize(("content", "reason"), [("", "is empty"), ("\n \n", "only blank lines")])
def test_a_file_without_records_is_refused(tmp_path: Path, content: str, reason: str) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text(content)
    with pytest.raises(InputError, match=reason):
        plan_files([str(path)])


def test_a_damaged_archive_has_one_line_more_that_says_so(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl.gz"
    path.write_bytes(gzip.compress(b"{}\n" * 1000)[:-4])
    plan = plan_files([str(path)])
    *kept, last = [line for part in plan.parts for line in read_lines(plan, part)]
    assert [line.content for line in kept] == [b"{}\n"] * 1000
    assert (last.number, last.conversation_id) == (1001, "c.jsonl.gz:1001")
    assert plan.n_records == 1001


def test_lines_of_an_archive_are_numbered_and_divided(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"id": "a"}\n{}\n') + gzip.compress(b'{"id": "b"}\n'))
    assert ids(str(path), part_bytes=1) == ["a", "c.jsonl.gz:2", "b"]


def test_a_byte_order_mark_is_no_part_of_the_record(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"id": "x"}\n')
    plan = plan_files([str(path)])
    [line] = read_lines(plan, plan.parts[0])
    assert (line.conversation_id, line.content) == ("x", b'{"id": "x"}\n')


def test_an_empty_id_is_none(tmp_path: Path) -> None:
    assert ids(write(tmp_path / "c.jsonl", '{"id": ""}')) == ["c.jsonl:1"]


def test_a_file_that_becomes_shorter_ends_the_run(tmp_path: Path) -> None:
    path = write(tmp_path / "c.jsonl", "{}", "{}")
    plan = plan_files([path])
    Path(path).write_text("{}\n")
    with pytest.raises(InputError, match="became shorter while it was read"):
        list(read_lines(plan, plan.parts[0]))
