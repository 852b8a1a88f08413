from __future__ import annotations

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokscore.rendering.templates.json import dumps
from tokscore.rendering.templates.origins import SYNTAX, UNTRACKED, Origin, Run, origin_of_path
from tokscore.rendering.templates.strings import TrackedStr, concat, copied, literal, plain, track
from tokscore.rendering.templates.values import wrap

CONTENT = origin_of_path(("messages", 0, "content"))

TEXTS = st.text(alphabet=st.sampled_from(list("ab \n\t-ßİé🎉'\"\\{}%<")), max_size=12)


def pieces(text: TrackedStr) -> list[tuple[str, Origin | None, int]]:
    found, position = [], 0
    for run in text._runs:
        found.append((plain(text)[position : position + run.length], run.origin, run.start))
        position += run.length
    return found


def check(tracked: TrackedStr, expected: str) -> None:
    assert plain(tracked) == expected
    assert sum(run.length for run in tracked._runs) == len(expected)
    assert all(run.length > 0 for run in tracked._runs)


@st.composite
def tracked_texts(draw: st.DrawFn) -> TrackedStr:
    parts: list[TrackedStr] = []
    for i, text in enumerate(draw(st.lists(TEXTS, max_size=4))):
        parts.append(
            copied(text, origin_of_path(("messages", i, "content"))) if draw(st.booleans()) else literal(text)
        )
    return concat(parts)


OPERATIONS = {
    "strip": lambda s: s.strip(),
    "lstrip chars": lambda s: s.lstrip("ab"),
    "rstrip": lambda s: s.rstrip(),
    "upper": lambda s: s.upper(),
    "lower": lambda s: s.lower(),
    "title": lambda s: s.title(),
    "capitalize": lambda s: s.capitalize(),
    "swapcase": lambda s: s.swapcase(),
    "casefold": lambda s: s.casefold(),
    "split": lambda s: "|".join(s.split()),
    "split sep": lambda s: "|".join(s.split("a")),
    "split max": lambda s: "|".join(s.split("a", 1)),
    "rsplit": lambda s: "|".join(s.rsplit(None, 1)),
    "rsplit sep": lambda s: "|".join(s.rsplit("b", 1)),
    "splitlines": lambda s: "|".join(s.splitlines()),
    "splitlines keep": lambda s: "".join(s.splitlines(True)),
    "partition": lambda s: "|".join(s.partition("a")),
    "rpartition": lambda s: "|".join(s.rpartition("a")),
    "replace": lambda s: s.replace("a", "xy"),
    "replace count": lambda s: s.replace("a", "", 1),
    "replace empty": lambda s: s.replace("", "-"),
    "removeprefix": lambda s: s.removeprefix("a"),
    "removesuffix": lambda s: s.removesuffix("b"),
    "slice": lambda s: s[1:-1],
    "step": lambda s: s[::-2],
    "index": lambda s: s[0] if s else s,
    "ljust": lambda s: s.ljust(9, "."),
    "rjust": lambda s: s.rjust(9),
    "center": lambda s: s.center(10, "*"),
    "times": lambda s: 2 * s + s * 0,
    "iterate": lambda s: "".join(s),
    "percent": lambda s: s.replace("%", "%%") % (),
}


@pytest.mark.parametrize("name", OPERATIONS)
@given(text=tracked_texts())
def test_an_operation_gives_the_text_of_str_and_runs_that_cover_it(name: str, text: TrackedStr) -> None:
    operation = OPERATIONS[name]
    result = operation(text)
    assert result == operation(plain(text))
    if isinstance(result, TrackedStr):
        check(result, str(operation(plain(text))))


def test_slices_know_their_offset_in_the_input() -> None:
    text = literal("<") + copied("  hello ", CONTENT).strip() + ">"
    assert pieces(text) == [("<", None, SYNTAX), ("hello", CONTENT, 2), (">", UNTRACKED, SYNTAX)]


def test_replaced_text_belongs_to_what_was_put_in() -> None:
    text = copied("a-b", CONTENT).replace("-", literal("::"))
    assert pieces(text) == [("a", CONTENT, 0), ("::", None, SYNTAX), ("b", CONTENT, 2)]


def test_percent_formatting_keeps_the_origin_of_what_it_prints() -> None:
    text = literal("[%s|%d]") % (copied("x", CONTENT), 3)
    assert pieces(text) == [
        ("[", None, SYNTAX),
        ("x", CONTENT, 0),
        ("|", None, SYNTAX),
        ("3", None, SYNTAX),
        ("]", None, SYNTAX),
    ]


def test_a_string_made_elsewhere_is_untracked() -> None:
    assert pieces(track("made elsewhere")) == [("made elsewhere", UNTRACKED, SYNTAX)]
    assert pieces(TrackedStr("no runs given")) == [("no runs given", UNTRACKED, SYNTAX)]


def test_a_tracked_string_is_pickled_as_plain_text() -> None:
    assert type(pickle.loads(pickle.dumps(copied("x", CONTENT)))) is str


@pytest.mark.parametrize(
    ("path", "root", "is_body"),
    [
        (("messages", 0, "content"), "content", True),
        (("messages", 0, "content", 1, "text"), "content", True),
        (("messages", 0, "content", 1, "type"), "content", False),
        (("messages", 0, "reasoning"), "reasoning_content", True),
        (("messages", 0, "thinking"), "reasoning_content", True),
        (("messages", 0, "role"), "role", False),
        (("messages", 0, "tool_call_id"), "tool_call_id", False),
        (("messages", 0, "tool_calls", 0, "id"), "tool_calls", False),
        (("messages", 0, "tool_calls", 0, "function", "arguments", "id"), "tool_calls", True),
        (("tools", 0, "function"), "tools", False),
        (("template", "bos_token"), "template", False),
    ],
)
def test_the_path_says_what_is_body(path: tuple[str | int, ...], root: str, is_body: bool) -> None:
    origin = origin_of_path(path)
    assert (origin.root, origin.is_body) == (root, is_body)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False, width=32) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    "settings",
    [{}, {"ensure_ascii": True}, {"indent": 2}, {"separators": (",", ":")}, {"sort_keys": True, "indent": 1}],
)
@given(value=JSON_VALUES)
def test_tojson_prints_what_json_prints(settings: dict[str, object], value: object) -> None:
    expected = json.dumps([value], **{"ensure_ascii": False, **settings})
    text = dumps(wrap([value], ("messages", 0, "tool_calls")), **settings)
    check(text, expected)
    assert all(run.origin is not None and run.origin.message == 0 for run in text._runs)


def test_escaped_characters_know_the_character_they_stand_for() -> None:
    text = dumps(copied('a"\nb', CONTENT))
    assert [(piece, start) for piece, _, start in pieces(text)] == [
        ('"', SYNTAX),
        ("a", 0),
        ("\\", 1),
        ('"', SYNTAX),
        ("\\", 2),
        ("n", SYNTAX),
        ("b", 3),
        ('"', SYNTAX),
    ]


def test_json_brackets_belong_to_their_container() -> None:
    text = dumps(wrap({"k": [True, 1]}, ("messages", 3, "tool_calls", 0, "function", "arguments")))
    assert plain(text) == '{"k": [true, 1]}'
    assert {run.origin.message for run in text._runs if run.origin} == {3}


def test_what_json_has_no_form_for_is_refused() -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        dumps({1, 2})


def test_run_parts_keep_the_offset_only_where_there_is_one() -> None:
    assert Run(5, CONTENT, 2).part(1, 3) == Run(3, CONTENT, 3)
    assert Run(5, CONTENT).part(1, 3) == Run(3, CONTENT)
