"""Names, keys and order of groups."""

from __future__ import annotations

import json
import tracemalloc

import pytest

from tokscore.analytics.groups.grouping import (
    group_label,
    group_order,
    metadata_value,
    parse_group_by,
    place_metadata,
)
from tokscore.dataset.errors import InputError, UsageError
from tokscore.dataset.token_rows import Place


def test_names_come_joined_by_commas_and_as_a_list() -> None:
    assert parse_group_by("role, source") == parse_group_by(["role", "source"])
    assert parse_group_by(["role,metadata.task"]).metadata_names == ("metadata.task",)


@pytest.mark.parametrize("names", ["colour", "role,colour", "metadata.", "role,role", "", []])
def test_names_that_make_no_groups_are_refused(names: str | list[str]) -> None:
    with pytest.raises(UsageError, match="cannot group by"):
        parse_group_by(names)


def test_one_name_has_scalar_keys_and_several_have_tuples() -> None:
    assert parse_group_by("role").key(["user"]) == "user"
    both = parse_group_by("role,is_sampled")
    assert both.key(["assistant", None]) == ("assistant", None)
    assert group_label(("assistant", None), both) == "assistant, (unknown)"


def test_groups_are_ordered_by_number_and_no_message_comes_last() -> None:
    assert sorted([-1, 10, 2], key=group_order) == [2, 10, -1]
    assert sorted([(None, 1), ("user", 2), ("user", 1)], key=group_order) == [
        ("user", 1),
        ("user", 2),
        (None, 1),
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("metadata.task", "math"),
        ("metadata.run.seed", 3),
        ("metadata.a.b", "true"),
        ("metadata.tags", '["x"]'),
        ("metadata.run.absent", None),
        ("metadata.task.deeper", None),
    ],
)
def test_metadata_is_found_by_key_or_by_path(name: str, value: object) -> None:
    text = '{"task": "math", "run": {"seed": 3}, "a.b": true, "tags": ["x"]}'
    assert metadata_value(text, name) == value
    assert metadata_value(None, name) is None


def test_metadata_that_no_group_has_is_told() -> None:
    by = parse_group_by("role,metadata.task,metadata.nope")
    assert by.absent_metadata([("user", None, None), ("assistant", "sort", None)]) == ["metadata.nope"]
    assert parse_group_by("role").absent_metadata([None]) == []


@pytest.mark.parametrize("text", ["{", '{"k": ' + "[" * 100_000, '{"k": 1e999}', '{"k": nan}'])
def test_metadata_that_are_no_json_are_refused_by_conversation_and_column(text: str) -> None:
    place = Place("c1", 2, text, part=0, first_row=0, n_tokens=1, n_messages=1)
    with pytest.raises(InputError, match="conversation 'c1' branch 2 has no JSON in column metadata"):
        place_metadata(place, "metadata.k")


def test_large_metadata_are_not_made_objects() -> None:
    """A list of 100,000 objects takes ten times its text."""
    text = json.dumps({"k": "x", "rest": [{"a": index} for index in range(100_000)]})
    metadata_value(text, "metadata.k")
    tracemalloc.start()
    assert metadata_value(text, "metadata.k") == "x"
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * len(text)
