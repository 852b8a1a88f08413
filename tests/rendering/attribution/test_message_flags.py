from __future__ import annotations

from typing import Any

import pytest

from tokscore.rendering.attribution.message_flags import encoded_twice
from tokscore.rendering.attribution.owners import dropped_characters
from tokscore.rendering.templates.render import render_template

TOJSON = "{% for m in messages %}{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
WHOLE = "{% for m in messages %}{{ m.tool_calls | tojson(indent=2) }}{% endfor %}"
RAW = '{% for m in messages %}{% for c in m.tool_calls %}"{{ c.function.arguments }}"{% endfor %}{% endfor %}'
BOTH = "{% for m in messages %}{% for c in m.tool_calls %}{% set a = c.function.arguments %}{{ a if a is string else a | tojson }}{% endfor %}{% endfor %}"


def found(template: str, arguments: object, *, flat: bool = False) -> set[int]:
    function = {"name": "f", "arguments": arguments}
    call: dict[str, Any] = function if flat else {"id": "1", "type": "function", "function": function}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": '"{}"', "tool_calls": []},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    rendered = render_template(template, messages)
    return encoded_twice(messages, rendered.text, rendered.runs)


@pytest.mark.parametrize("template", [TOJSON, WHOLE])
def test_json_text_that_is_printed_as_a_json_string_is_found(template: str) -> None:
    assert found(template, '{"city": "Oslo"}') == {1}
    assert found(template, "[1]") == {1}


def test_a_call_without_a_function_object_is_found_too() -> None:
    assert found(WHOLE, "{}", flat=True) == {1}


@pytest.mark.parametrize("template", [RAW, BOTH])
def test_json_text_that_is_printed_as_it_is_is_not_reported(template: str) -> None:
    assert found(template, '{"city": "Oslo"}') == set()


@pytest.mark.parametrize("template", [TOJSON, WHOLE, BOTH])
@pytest.mark.parametrize("arguments", [{"city": "Oslo"}, {"city": '{"a": 1}'}, "no JSON", "7", "", None])
def test_other_arguments_are_not_reported(template: str, arguments: object) -> None:
    assert found(template, arguments) == set()


PARTS = (
    "{% for m in messages %}{% for p in m.content %}{{ p.text if p.type == 'text' }}{% endfor %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("part", "n_dropped"),
    [
        ({"type": "text", "text": "four"}, 0),
        ("four", 4),
        ({"type": "thinking", "thinking": "four", "signature": "EqQ"}, 4),
        ({"type": "thinking", "thinking": [{"type": "text", "text": "four"}]}, 4),
        ({"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"p": "one", "q": ["two"]}}, 7),
        ({"type": "tool_result", "tool_use_id": "toolu_1", "content": "four"}, 4),
        ({"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "four"}]}, 4),
        ({"type": "refusal", "refusal": "four"}, 4),
    ],
)
def test_what_parts_say_and_a_template_leaves_out_is_counted(part: object, n_dropped: int) -> None:
    messages = [{"role": "user", "content": [part, {"type": "text", "text": "more"}]}]
    assert dropped_characters(messages, render_template(PARTS, messages).runs) == [n_dropped]
