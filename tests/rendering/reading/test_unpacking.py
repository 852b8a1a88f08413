"""Files of all looks become one record a line, byte for byte."""

from __future__ import annotations

import gzip
import json
import math
import pickle
import random
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokscore.dataset.errors import ConversationError, InputError
from tokscore.rendering.conversations.conversation import CUT_ARRAY, CUT_FILE, decode_record
from tokscore.rendering.reading.unpacking import spool, unpacked

MARK = b"\xef\xbb\xbf"


def lines(tmp_path: Path, content: bytes) -> list[bytes]:
    path = tmp_path / "input.json"
    path.write_bytes(content)
    return unpacked(path, "input.json").read_bytes().removesuffix(b"\n").split(b"\n")


# arrays


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'[{"a":1},{"b":2}]', [b'{"a":1}', b'{"b":2}']),
        (b' \n[\n {"a": 1} ,\n\t{"b": 2}\r\n]\n', [b'{"a": 1}', b'{"b": 2}']),
        (MARK + b'[{"a":1}]', [b'{"a":1}']),
        (b'[{"a":"]},{[,"},{"b":2}]', [b'{"a":"]},{[,"}', b'{"b":2}']),
        (rb'[{"a":"\"]"},{"b":"\\"},{"c":"\\\"}"}]', [rb'{"a":"\"]"}', rb'{"b":"\\"}', rb'{"c":"\\\"}"}']),
        ('[{"ä":"日本 \\u20ac 🙂"}]'.encode(), ['{"ä":"日本 \\u20ac 🙂"}'.encode()]),
        (b'[[1,[2,[]]],{"a":[{"b":[]}]}]', [b"[1,[2,[]]]", b'{"a":[{"b":[]}]}']),
        (b'[1, "two, ]", null, -3.5e1, true]', [b"1", b'"two, ]"', b"null", b"-3.5e1", b"true"]),
        (b'[{"a":1.0,"b":12345678901234567890}]', [b'{"a":1.0,"b":12345678901234567890}']),
        (b"[]", [b""]),
        (b" [ \n ] ", [b""]),
    ],
)
def test_array_becomes_one_element_a_line(tmp_path: Path, content: bytes, expected: list[bytes]) -> None:
    assert lines(tmp_path, content) == expected


def test_element_over_several_lines_becomes_one(tmp_path: Path) -> None:
    content = b'[\n  {\n    "a": "x\\n  y",\r\n    "b": [\n      1.0,\n      1E+2\n    ]\n  }\n]'
    assert lines(tmp_path, content) == [b'{"a":"x\\n  y","b":[1.0,1E+2]}']


@pytest.mark.parametrize(
    ("content", "last"),
    [
        (b'[{"a":1},{"b":[1,2', b'{"b":[1,2'),
        (b'[{"a":1},{"b":"[{', b'{"b":"[{'),
        (b'[{"a":1},{"b":"x\\', b'{"b":"x\\'),
        (b'[{"a":1},{\n "b": {"c":\n 1}\n', b'{ "b": {"c": 1}'),
        (b'[{"a":1},"x', b'"x'),
    ],
)
def test_last_element_of_a_truncated_array_is_kept_as_it_is(
    tmp_path: Path, content: bytes, last: bytes
) -> None:
    assert lines(tmp_path, content) == [b'{"a":1}', last]


@pytest.mark.parametrize("end", [b"", b",", b", \n"])
def test_array_cut_between_elements_keeps_them_and_says_so(tmp_path: Path, end: bytes) -> None:
    assert lines(tmp_path, b'[{"a":1},{"b":2}' + end) == [b'{"a":1}', b'{"b":2}', CUT_ARRAY]
    with pytest.raises(ConversationError, match="the JSON array of the file ends without its ]"):
        decode_record(CUT_ARRAY)


def test_lines_behind_an_array_are_kept(tmp_path: Path) -> None:
    content = b'[1]\n{"a":1}\n\n{"b":2}'
    assert lines(tmp_path, content) == [b"1", b'{"a":1}', b'{"b":2}']


def test_array_of_messages_is_one_conversation(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "Hi\n[there]"}, {"role": "assistant", "content": None}]
    (line,) = lines(tmp_path, json.dumps(messages, indent=2).encode())
    assert json.loads(line) == {"messages": messages}


def test_array_of_records_with_a_role_is_no_conversation(tmp_path: Path) -> None:
    found = [{"role": "coder", "messages": [], "content": ""}, {"role": "coder"}]
    assert len(lines(tmp_path, json.dumps(found).encode())) == 2


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=20,
)


@given(
    values=st.lists(JSON_VALUES, max_size=6),
    indent=st.none() | st.integers(0, 3),
    is_ascii=st.booleans(),
)
def test_unpacked_array_has_the_elements_of_the_array(
    tmp_path_factory: pytest.TempPathFactory, values: list[Any], indent: int | None, is_ascii: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "drawn.json"
    path.write_text(json.dumps(values, indent=indent, ensure_ascii=is_ascii), encoding="utf-8")
    found = unpacked(path, "drawn.json").read_bytes().split(b"\n")
    assert [json.loads(line) for line in found[:-1]] == values
    assert found[-1] == b""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_array(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    element = {"messages": [{"role": "user", "content": "[" * 100}], "ids": list(range(200))}
    text = json.dumps(element).encode()
    n = 30 * 2**20 // len(text)
    path.write_bytes(b"[" + b",\n".join([text] * n) + b"]")
    tracemalloc.start()
    try:
        found = unpacked(path, "large.json")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 2**20
    assert found.stat().st_size == n * (len(text) + 1)


# objects


def test_object_over_several_lines_becomes_one(tmp_path: Path) -> None:
    record = {"history": [{"role": "user", "content": 'a\n"{b}"'}], "info": {}}
    (line,) = lines(tmp_path, MARK + json.dumps(record, indent=4).encode() + b"\n")
    assert json.loads(line) == record


@pytest.mark.parametrize(
    "content",
    [
        b'{"a":1}\n{"b":2}\n',
        b'{"a":1}',
        b'{"a":1\n{"b":2}\n',
        b'{\n{"a": 1}\n{"b": 2}\n',
        b"{" + b'"a":{' * 5000 + b"\n",
        b"not JSON\n",
        b"\n\n",
        b"",
        b'{"a":\n "\xff}',
    ],
)
def test_what_is_no_single_value_is_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "input.jsonl"
    path.write_bytes(content)
    assert unpacked(path, "input.jsonl") == path


def test_objects_over_several_lines_become_one_line_each(tmp_path: Path) -> None:
    found = lines(tmp_path, b'{\n "a": "}\\n{"\n}\n{\n "b": {}\n}\n{"c": 3}\n')
    assert [json.loads(line) for line in found] == [{"a": "}\n{"}, {"b": {}}, {"c": 3}]


def test_an_object_over_several_lines_that_is_cut_is_one_record(tmp_path: Path) -> None:
    assert lines(tmp_path, b'{\n "a": [\n  1,\n  "x') == [b'{ "a": [ 1, "x']
    assert lines(tmp_path, b'{\n "a"') == [b'{ "a"']


# compressed files and tables


def test_compressed_array_is_unpacked_twice(tmp_path: Path) -> None:
    assert lines(tmp_path, gzip.compress(b'[{"a":1},{"b":2}]')) == [b'{"a":1}', b'{"b":2}']
    zstd = pa.compress(b'{\n"a":1\n}', codec="zstd", asbytes=True)
    assert lines(tmp_path, zstd) == [b'{"a":1}']


def test_compressed_lines_are_what_was_compressed(tmp_path: Path) -> None:
    assert lines(tmp_path, gzip.compress(b'{"a":1}\n{"b":2}\n')) == [b'{"a":1}', b'{"b":2}']


def compressed(text: bytes, codec: str) -> bytes:
    found = gzip.compress(text) if codec == "gzip" else pa.compress(text, codec=codec, asbytes=True)
    assert isinstance(found, bytes)
    return found


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_all_that_a_cut_compressed_file_holds_comes_before_the_cut(tmp_path: Path, codec: str) -> None:
    rng = random.Random(4)
    rows = [b'{"a": %d}' % rng.getrandbits(60) for _ in range(60_000)]
    content = compressed(b"\n".join(rows) + b"\n", codec)
    *kept, mark = lines(tmp_path, content[: len(content) * 3 // 4])
    assert kept == rows[: len(kept)]
    assert len(kept) > len(rows) * 0.6  # zstd has blocks of 128 KiB
    with pytest.raises(ConversationError, match=rf"^is missing, and .* \({codec} says: Truncated compressed"):
        decode_record(mark)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (b'{"a":1}\n{"b":2}\n', [b'{"a":1}', b'{"b":2}']),
        (b'{"a":1}\n{"b":2}', [b'{"a":1}', b'{"b":2}']),
        (b'{"a":1}\n{"b":[1,2', [b'{"a":1}']),
        (b'[{"a":1},\n{"b":2}', [b'{"a":1}', b'{"b":2}']),
        (b'[{"a":1},\n{"b":[1,\n2', [b'{"a":1}']),
        (b"", []),
    ],
)
def test_a_cut_is_one_line_wherever_it_is(tmp_path: Path, text: bytes, kept: list[bytes]) -> None:
    stream = zlib.compressobj(wbits=31)
    begun = stream.compress(text) + stream.flush(zlib.Z_SYNC_FLUSH)
    *found, mark = lines(tmp_path, begun)
    assert found == kept
    assert mark == CUT_FILE + b"gzip says: Truncated compressed stream"


def test_damage_from_the_first_byte_on_is_one_line(tmp_path: Path) -> None:
    content = gzip.compress(b'{"a":1}\n' * 1000)
    (mark,) = lines(tmp_path, content[:10] + b"\0\0\0\0" + content[14:])
    assert mark.startswith(CUT_FILE + b"gzip says: zlib inflate failed")


def test_pickles_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^input\.json is a pickle or a zip archive, .*\nPickles are never"):
        lines(tmp_path, pickle.dumps({"messages": []}))


def test_rows_of_a_parquet_file_become_lines(tmp_path: Path) -> None:
    rows = [
        {"id": f"r{i}", "messages": [{"role": "user", "content": f"Hi {i}"}] * (i % 3), "score": i / 4}
        for i in range(600)
    ]
    path = tmp_path / "table.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=250)
    found = unpacked(path, "table.parquet").read_bytes().splitlines()
    assert [msgspec.json.decode(line) for line in found] == rows


def test_null_columns_of_a_parquet_file_are_null(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    pq.write_table(pa.table({"prompt": ["Hi", None], "ids": [[1, 2], None]}), path)
    found = unpacked(path, "table.parquet").read_bytes().splitlines()
    assert found == [b'{"prompt":"Hi","ids":[1,2]}', b'{"prompt":null,"ids":null}']


def test_keys_that_only_other_rows_of_a_parquet_file_have_are_left_out(tmp_path: Path) -> None:
    def record(arguments: dict[str, Any], properties: dict[str, Any]) -> dict[str, Any]:
        call = {"function": {"name": "f", "arguments": arguments}}
        tool = {"name": "f", "parameters": {"properties": properties, "required": [None, "x"]}}
        calling = {"role": "assistant", "content": None, "tool_calls": [call]}
        return {"messages": [calling], "tools": [tool], "info": {"seed": None}}

    one = record({"city": "Rome", "where": [{"x": 1}]}, {"city": {"type": "string"}})
    two = record({"code": 7, "where": [{"y": 2}, {}]}, {"code": {"type": "integer", "enum": [7]}})
    path = tmp_path / "table.parquet"
    pq.write_table(pa.Table.from_pylist([one, two, {**one, "tools": None}]), path)
    found = unpacked(path, "table.parquet").read_bytes().splitlines()
    assert [msgspec.json.decode(line) for line in found] == [one, two, {**one, "tools": None}]


def test_parts_of_a_content_have_their_own_keys(tmp_path: Path) -> None:
    picture = {"type": "image_url", "image_url": {"url": "a.png"}}
    said = [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, picture]}]
    path = tmp_path / "table.parquet"
    pq.write_table(pa.table({"messages": [said, [{"role": "user", "content": None}]]}), path)
    first, second = unpacked(path, "table.parquet").read_bytes().splitlines()
    assert msgspec.json.decode(first) == {"messages": said}
    assert msgspec.json.decode(second) == {"messages": [{"role": "user", "content": None}]}


def test_maps_of_a_parquet_file_are_objects(tmp_path: Path) -> None:
    number = pa.map_(pa.string(), pa.float64())
    function = pa.struct([("name", pa.string()), ("arguments", number)])
    table = pa.table(
        {
            "calls": pa.array(
                [[{"name": "f", "arguments": [("x", 1.5), ("y", None)]}], None], pa.list_(function)
            ),
            "logprobs": pa.array([[("a", -math.inf)], []], number),
            "counts": pa.array([[(7, 1)], None], pa.map_(pa.int64(), pa.int8())),
        }
    )
    path = tmp_path / "table.parquet"
    pq.write_table(table, path)
    first, second = map(decode_record, unpacked(path, "table.parquet").read_bytes().splitlines())
    assert first == {
        "calls": [{"name": "f", "arguments": {"x": 1.5, "y": None}}],
        "logprobs": {"a": -math.inf},
        "counts": {"7": 1},
    }
    assert second == {"calls": None, "logprobs": {}, "counts": None}


def test_infinities_of_a_parquet_file_stay(tmp_path: Path) -> None:
    nested = [{"tokens": {"completion_logprobs": [-math.inf, -0.5]}}]
    rows = [{"logprobs": [-math.inf, -1.0], "steps": nested, "reward": math.nan}]
    path = tmp_path / "table.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    assert decode_record(unpacked(path, "table.parquet").read_bytes()) == {**rows[0], "reward": None}


def test_damaged_parquet_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^input\.json is damaged: .*; expected a Parquet file\.$"):
        lines(tmp_path, b"PAR1 and then nothing of the kind")


def test_spooled_stream_is_copied(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    path.write_bytes(b"abc" * 1000)
    with path.open("rb") as stream:
        assert spool(stream).read_bytes() == b"abc" * 1000


def test_elements_behind_one_that_does_not_end_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    record = '{"id": "%d", "messages": [{"role": "user", "content": "a, {b}", "tool_calls": [{"id": "x"}, {"id": "y"}]}]}'
    cut = '{"id": "1", "messages": [{"role": "user", "tool_calls": [{"id": "x"}, {"id": "y"}]'
    path.write_text(f"[{record % 0}, {cut}, {record % 2}, {record % 3}]")
    lines = unpacked(path, path.name).read_text().splitlines()
    assert lines == [record % 0, cut, record % 2, record % 3]


def test_all_of_a_gzip_file_with_a_wrong_checksum_is_read(tmp_path: Path) -> None:
    path = tmp_path / "convs.jsonl.gz"
    lines = [f'{{"id": "{i}"}}' for i in range(60)]
    first = gzip.compress("".join(f"{line}\n" for line in lines[:50]).encode())
    second = gzip.compress("".join(f"{line}\n" for line in lines[50:]).encode())
    path.write_bytes(first + second[:-8] + bytes(8))
    *whole, mark = unpacked(path, path.name).read_text().splitlines()
    assert whole == lines
    assert mark.startswith("\x18gzip says: ")
