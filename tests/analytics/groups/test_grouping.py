"""Names, keys and order of groups."""

from __future__ import annotations

import pytest

from tokscore.analytics.groups.grouping import group_label, group_order, metadata_value, parse_group_by
from tokscore.dataset.errors import UsageError


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
