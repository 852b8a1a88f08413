"""The requests of a batch and their outputs become one record a line."""

from __future__ import annotations

import codecs
import json
from pathlib import Path
from typing import Any

import pytest

from tokscore.dataset.errors import InputError
from tokscore.rendering.reading.formats.batch_files import Source, batch_pairs, joined


def request(custom_id: str) -> dict[str, Any]:
    return {"custom_id": custom_id, "body": {"messages": [{"role": "user", "content": custom_id}]}}


def output(custom_id: str, **more: Any) -> dict[str, Any]:
    return {"id": "x", "custom_id": custom_id, "response": {"status_code": 200}, "error": None, **more}


def write(path: Path, *found: dict[str, Any] | str) -> Path:
    path.write_text("".join((each if isinstance(each, str) else json.dumps(each)) + "\n" for each in found))
    return path


def decoded(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_bytes().splitlines() if line]


def test_outputs_are_joined_in_the_order_of_the_requests(tmp_path: Path) -> None:
    requests = write(tmp_path / "in.jsonl", request("a"), request("b"), request("c"))
    outputs = write(tmp_path / "out.jsonl", output("c", response=None, error={"code": "x"}), output("a"))
    assert decoded(joined(requests, [outputs], ["in.jsonl", "out.jsonl"])) == [
        {
            "custom_id": "a",
            "request": request("a"),
            "response": {"status_code": 200},
            "error": None,
            "output": "out.jsonl:2",
        },
        {
            "custom_id": "b",
            "request": request("b"),
            "response": None,
            "error": {"message": "no output for this request"},
        },
        {
            "custom_id": "c",
            "request": request("c"),
            "response": None,
            "error": {"code": "x"},
            "output": "out.jsonl:1",
        },
    ]


def test_failures_in_a_file_of_their_own_are_joined_too(tmp_path: Path) -> None:
    requests = write(tmp_path / "in.jsonl", request("a"), request("b"))
    done = write(tmp_path / "out.jsonl", output("b"))
    failed = write(tmp_path / "errors.jsonl", output("a", response={"status_code": 500}))
    found = decoded(joined(requests, [done, failed], ["in.jsonl", "out.jsonl", "errors.jsonl"]))
    assert [each["response"]["status_code"] for each in found] == [500, 200]


def test_joined_lines_keep_the_bytes_and_the_line_numbers(tmp_path: Path) -> None:
    requests = tmp_path / "in.jsonl"
    requests.write_bytes(codecs.BOM_UTF8 + b'{"custom_id":"a","body":{"x": 1.0}}\n\nnot JSON\n')
    outputs = write(tmp_path / "out.jsonl", '{"custom_id":"a","response":{"y" : 2.50}}')
    assert joined(requests, [outputs], ["in.jsonl", "out.jsonl"]).read_bytes() == (
        b'{"custom_id": "a", "request": {"custom_id":"a","body":{"x": 1.0}}, "response": {"y" : 2.50}, '
        b'"error": null, "output": "out.jsonl:1"}\n\nnot JSON\n'
    )


def test_requests_with_the_same_custom_id_get_no_output(tmp_path: Path) -> None:
    requests = write(tmp_path / "in.jsonl", request("a"), request("b"), request("a"))
    outputs = write(tmp_path / "out.jsonl", output("a"), output("b"))
    found = decoded(joined(requests, [outputs], ["in.jsonl", "out.jsonl"]))
    said = {"message": "custom_id a is that of 2 requests; expected one"}
    assert [each["error"] for each in found] == [said, None, said]
    assert [each["response"] is None for each in found] == [True, False, True]


def test_lines_that_are_no_outputs_of_a_request_come_behind_with_the_reason(tmp_path: Path) -> None:
    requests = tmp_path / "in.jsonl"
    requests.write_text(json.dumps(request("a")))
    outputs = write(tmp_path / "out.jsonl", output("a"), "", output("z"), "not JSON", {"custom_id": 1})
    found = decoded(joined(requests, [outputs], ["in.jsonl", "out.jsonl"]))
    assert found[0]["output"] == "out.jsonl:1"
    assert {each["output"]: each["unusable"] for each in found[1:]} == {
        "out.jsonl:4": "is not JSON: JSON is malformed: invalid character (byte 4); expected one JSON object a line.",
        "out.jsonl:5": "is no output of a batch; expected an object with custom_id, response and error.",
        "out.jsonl:3": 'has custom_id "z", which in.jsonl lacks; expected a request for every output.',
    }


def test_request_with_two_outputs_says_where_they_are(tmp_path: Path) -> None:
    requests = write(tmp_path / "in.jsonl", request("a"), request("b"))
    outputs = write(tmp_path / "out.jsonl", output("a"), output("b"), output("a"))
    first, second = decoded(joined(requests, [outputs], ["in.jsonl", "out.jsonl"]))
    said = "custom_id a has 2 outputs (out.jsonl:1, out.jsonl:3); expected one"
    assert first["error"] == {"message": said}
    assert second["output"] == "out.jsonl:2"


def pairs(*paths: Path) -> list[Source]:
    return batch_pairs(paths, [path.name for path in paths])


def test_each_batch_is_paired_with_its_own_outputs(tmp_path: Path) -> None:
    out_1 = write(tmp_path / "out-1.jsonl", output("a1"))
    chats = write(tmp_path / "chats.jsonl", {"messages": []})
    in_2 = write(tmp_path / "in-2.jsonl", request("b1"), request("b2"))
    in_1 = write(tmp_path / "in-1.jsonl", request("a1"))
    out_2 = write(tmp_path / "out-2.jsonl", output("b2"), output("b1"))
    found = pairs(out_1, chats, in_2, in_1, out_2)
    assert [source.input_index for source in found] == [1, 2, 3]
    assert found[0].path == chats
    assert [record["custom_id"] for record in decoded(found[1].path)] == ["b1", "b2"]
    assert decoded(found[2].path)[0]["response"] == {"status_code": 200}


def test_a_broken_first_request_does_not_keep_the_others_from_their_outputs(tmp_path: Path) -> None:
    requests = write(tmp_path / "in.jsonl", "{broken", request("a"))
    outputs = write(tmp_path / "out.jsonl", output("a"))
    (found,) = pairs(requests, outputs)
    broken, line = found.path.read_bytes().splitlines()
    assert broken == b"{broken"
    assert json.loads(line)["response"] == {"status_code": 200}


@pytest.mark.parametrize("record", [request("a"), output("a"), {"messages": []}])
def test_files_without_a_partner_stay_as_they_are(tmp_path: Path, record: dict[str, Any]) -> None:
    path = write(tmp_path / "input.jsonl", record)
    assert pairs(path) == [Source(path, 0)]


def test_joined_file_is_not_taken_for_outputs(tmp_path: Path) -> None:
    both = write(tmp_path / "both.jsonl", {"custom_id": "a", "request": request("a"), "response": {}})
    other = write(tmp_path / "in.jsonl", request("b"))
    assert pairs(both, other) == [Source(both, 0), Source(other, 1)]


def test_outputs_whose_first_has_no_request_are_joined_by_a_later_one(tmp_path: Path) -> None:
    other = write(tmp_path / "other.jsonl", request("o"))
    requests = write(tmp_path / "in.jsonl", request("a"))
    outputs = write(tmp_path / "out.jsonl", output("z"), output("a"))
    alone, found = pairs(other, requests, outputs)
    assert alone == Source(other, 0)
    answered, unusable = decoded(found.path)
    assert (answered["custom_id"], answered["output"]) == ("a", "out.jsonl:2")
    assert unusable["output"] == "out.jsonl:1"
    assert unusable["unusable"].startswith('has custom_id "z", which in.jsonl lacks')


def test_outputs_of_unknown_requests_are_unusable_one_by_one(tmp_path: Path) -> None:
    requests = write(tmp_path / "in.jsonl", request("a"))
    outputs = write(tmp_path / "out.jsonl", output("y"), output("z"))
    (found,) = pairs(requests, outputs)
    assert [each.get("unusable", "")[:17] for each in decoded(found.path)] == [
        "",
        'has custom_id "y"',
        'has custom_id "z"',
    ]
    other = write(tmp_path / "other.jsonl", request("b"))
    assert [source.path for source in pairs(requests, other, outputs)] == [requests, other, outputs]


def test_outputs_that_fit_two_batches_are_named(tmp_path: Path) -> None:
    one = write(tmp_path / "in-1.jsonl", request("a"))
    two = write(tmp_path / "in-2.jsonl", request("a"))
    outputs = write(tmp_path / "out.jsonl", output("a"))
    with pytest.raises(
        InputError, match=r'"a" is in in-1\.jsonl and in-2\.jsonl; expected it in one of them'
    ):
        pairs(one, two, outputs)
