"""Files that are one text."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tokscore.dataset.errors import InputError
from tokscore.rendering.reading.plan import Plan, plan_files, read_lines

PROSE = "First line,\r\nsecond line.\n\n{not json}\n"


def lines(plan: Plan) -> list[dict[str, str]]:
    return [json.loads(line.content) for part in plan.parts for line in read_lines(plan, part)]


def planned(path: Path, content: str | bytes, input_format: str | None = None) -> Plan:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return plan_files([str(path)], input_format)


@pytest.mark.parametrize(
    ("name", "content", "input_format"),
    [
        ("wiki.txt", PROSE.encode(), None),
        ("wiki.txt", PROSE.encode(), "text"),
        ("README.md", PROSE.encode(), "text"),
        ("wiki.txt.gz", gzip.compress(PROSE.encode(), mtime=0), None),
        ("wiki.txt", b"\xef\xbb\xbf" + PROSE.encode(), None),
    ],
)
def test_a_file_of_text_is_one_record_named_as_the_file(
    tmp_path: Path, name: str, content: bytes, input_format: str | None
) -> None:
    plan = planned(tmp_path / name, content, input_format)
    assert (plan.format.name, plan.n_records) == ("text", 1)
    assert lines(plan) == [{"id": name, "text": PROSE}]


@pytest.mark.parametrize("name", ["lines.txt", "lines.jsonl"])
@pytest.mark.parametrize("input_format", [None, "text"])
def test_lines_of_json_are_records_whatever_the_name(
    tmp_path: Path, name: str, input_format: str | None
) -> None:
    plan = planned(tmp_path / name, '{"text": "a"}\n{"text": "b"}\n', input_format)
    assert lines(plan) == [{"text": "a"}, {"text": "b"}]


def test_rows_of_a_table_with_a_text_are_records(tmp_path: Path) -> None:
    table = pa.table({"text": ["a\nb", "c"], "url": ["u", None]})
    pq.write_table(table, tmp_path / "texts.parquet")
    plan = plan_files([str(tmp_path / "texts.parquet")])
    assert (plan.format.name, plan.n_records) == ("text", 2)
    assert lines(plan) == [{"text": "a\nb", "url": "u"}, {"text": "c", "url": None}]


def test_what_only_begins_like_json_is_text_where_name_and_user_say_so(tmp_path: Path) -> None:
    content = '{"a": 1,\n "b": 2} is no JSON.\n'
    assert lines(planned(tmp_path / "a.txt", content, "text")) == [{"id": "a.txt", "text": content}]
    assert planned(tmp_path / "a.txt", content).format.name == "openai"
    assert planned(tmp_path / "a.jsonl", content, "text").n_records == 2


def test_text_of_another_format_is_not_taken_for_one(tmp_path: Path) -> None:
    assert planned(tmp_path / "a.txt", PROSE, "openai").n_records == 3
    assert planned(tmp_path / "a.md", PROSE).format.name == "openai"


def test_text_that_is_no_utf8_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a\.txt is not UTF-8: byte 4 is damaged"):
        planned(tmp_path / "a.txt", b"caf\xe9 au lait")
