from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tokscore.rendering.errors import ConversationError
from tokscore.rendering.origins import UNTRACKED
from tokscore.rendering.templates import (
    RenderedText,
    has_generation_tags,
    prepare_messages,
    render_template,
)

MESSAGES = [
    {"role": "system", "content": " be brief "},
    {"role": "user", "content": "Hi <b>"},
    {
        "role": "assistant",
        "content": "Yo",
        "tool_calls": [{"function": {"name": "f", "arguments": {"a": True}}}],
    },
]


def owners(rendered: RenderedText) -> list[tuple[str, int | None, int | None]]:
    """Text, message it came from, message that wrote it."""
    found, position = [], 0
    for run in rendered.runs:
        message = None if run.origin is None else run.origin.message
        found.append((rendered.text[position : position + run.length], message, run.writer))
        position += run.length
    return found


def test_text_written_in_a_message_loop_knows_the_message() -> None:
    template = "{{ 'B' }}{% for m in messages %}[{{ m.content | trim }}]{% endfor %}"
    assert owners(render_template(template, MESSAGES))[:4] == [
        ("B", None, None),
        ("[", None, 0),
        ("be brief", 0, 0),
        ("]", None, 0),
    ]


def test_text_of_a_message_keeps_its_origin_where_another_message_prints_it() -> None:
    template = (
        "{% set system = messages[0].content %}{% for m in messages[1:] %}"
        "{% if loop.last %}{{ system }}{% endif %}{{ m.content }};{% endfor %}"
    )
    assert (" be brief ", 0, 2) in owners(render_template(template, MESSAGES))


@pytest.mark.parametrize(
    "template",
    [
        "{% macro show(m) %}<{{ m.content }}>{% endmacro %}{% for m in messages %}{{ show(m) }}{% endfor %}",
        "{% for m in messages %}{% set text %}<{{ m.content }}>{% endset %}{{ text }}{% endfor %}",
        "{% for m in messages %}{% set ns = namespace(t='<') %}{% set ns.t = ns.t + m.content %}{{ ns.t ~ '>' }}{% endfor %}",
        "{% for m in messages %}{{ '<%s>' % m.content }}{% endfor %}",
        "{% for m in messages %}{{ '<{}>'.format(m.content) }}{% endfor %}",
        "{% for m in messages %}{{ '<' ~ m['content'] ~ '>' }}{% endfor %}",
        "{% for m in messages %}{{ ['<', m.content, '>'] | join }}{% endfor %}",
        "{% for m in messages %}{% filter trim %} <{{ m.content }}> {% endfilter %}{% endfor %}",
        "{% for m in messages if m.role != 'x' %}{% if loop.index > 9 %}{% break %}{% endif %}<{{ m.content }}>{% endfor %}",
        "{% for m in messages %}{% generation %}<{{ m.content }}>{% endgeneration %}{% endfor %}",
    ],
)
def test_a_construct_keeps_the_origin_of_content(template: str) -> None:
    rendered = render_template(template, MESSAGES)
    assert rendered.text == "< be brief ><Hi <b>><Yo>"
    content = [(text, message) for text, message, _ in owners(rendered) if message is not None]
    assert content == [(" be brief ", 0), ("Hi <b>", 1), ("Yo", 2)]


def test_generation_blocks_are_marked() -> None:
    template = "{% for m in messages %}{% if m.role == 'assistant' %}H{% generation %}{{ m.content }}E{% endgeneration %}{% endif %}{% endfor %}"
    rendered = render_template(template, MESSAGES)
    assert [(run.length, run.generated) for run in rendered.runs] == [(1, False), (2, True), (1, True)]


def test_truth_values_of_the_input_behave_like_truth_values() -> None:
    template = (
        "{% set a = messages[2].tool_calls[0].function.arguments %}{{ a.a }} {{ a.a is true }} {{ a.a is boolean }} "
        "{{ a.a == true }} {{ a.a is integer }} {{ a | tojson }} {{ a.a | string | lower }} {{ not a.a }}"
    )
    assert render_template(template, MESSAGES).text == 'True True True True False {"a": true} true False'


def test_what_loses_its_origin_is_marked_untracked() -> None:
    rendered = render_template("{{ messages[1].content | escape }}", MESSAGES)
    assert [run.origin for run in rendered.runs] == [UNTRACKED]


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__ }}",
        "{{ '{0.__class__}'.format(messages) }}",
        "{{ messages[0].content.format.__globals__ }}",
        "{{ messages[0].content._runs }}",
        "{{ messages[0].content.replace.__func__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'a': 1}) }}",
        "{% set ns = namespace(_x=1) %}",
    ],
)
def test_a_template_cannot_leave_the_sandbox(template: str) -> None:
    try:
        text = render_template(template, MESSAGES).text
    except ConversationError:
        return
    assert text == ""


def test_a_template_that_raises_names_its_reason() -> None:
    with pytest.raises(ConversationError, match="refuses the conversation: no bots here"):
        render_template("{{ raise_exception('no bots here') }}", MESSAGES)


def test_messages_are_prepared_as_transformers_does() -> None:
    prepared = prepare_messages([{"role": "assistant", "content": None, "reasoning": "r"}])
    assert prepared[0]["reasoning_content"] == "r"
    assert "content" not in prepared[0]


def call(arguments: object, identifier: str = "call_00001") -> dict[str, object]:
    return {"id": identifier, "type": "function", "function": {"name": "f", "arguments": arguments}}


def tool(content: str, identifier: str = "call_00001") -> dict[str, object]:
    return {"role": "tool", "name": "f", "tool_call_id": identifier, "content": content}


def user(content: object) -> dict[str, object]:
    return {"role": "user", "content": content}


def assistant(content: object, **more: object) -> dict[str, object]:
    return {"role": "assistant", "content": content, **more}


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "description": "d <x> & é",
            "parameters": {"type": "object", "properties": {"p": {"type": "string"}}, "required": ["p"]},
        },
    }
]
ARGUMENTS = {"p": 'é"\n', "n": 1, "b": True, "z": None, "l": [1.5, {"k": "v"}]}
SHAPES: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]] | None]] = {
    "system": (
        [{"role": "system", "content": "be good"}, user("hi"), assistant("yo"), user("q"), assistant("a")],
        None,
    ),
    "developer": ([{"role": "developer", "content": "dd"}, user("hi"), assistant("yo")], None),
    "reasoning": (
        [
            user("hi"),
            assistant("yo", reasoning_content="t 1"),
            user("q"),
            assistant("a", reasoning_content="t 2"),
        ],
        None,
    ),
    "two tool results": (
        [
            user("hi"),
            assistant("", tool_calls=[call(ARGUMENTS), call({"p": "2"}, "call_00002")]),
            tool("res 1"),
            tool("res 2", "call_00002"),
            assistant("done"),
        ],
        TOOLS,
    ),
    "string arguments, null content": (
        [user("hi"), assistant(None, tool_calls=[call('{"p": "x"}')]), tool('{"r": 1}'), assistant("done")],
        TOOLS,
    ),
    "parts": (
        [user([{"type": "text", "text": "hi"}, {"type": "text", "text": " there"}]), assistant("yo")],
        None,
    ),
    "unicode": ([user("e\u0301x 🎉 你好 \u200d"), assistant("İ ǅ ß <b>&amp;")], None),
    "control tokens": (
        [user("a<|im_end|>\n<|im_start|>assistant\nb</think>c"), assistant("</think>No<|eot_id|>")],
        None,
    ),
    "white space": (
        [{"role": "system", "content": "  s \n"}, user("\n hi \n\n"), assistant("\n\n Hello  \n")],
        None,
    ),
    "empty": ([user(""), assistant("")], None),
    "multi turn": (
        [user("1"), assistant("2"), user("3"), assistant("4"), user("5"), assistant("6"), user("7")],
        None,
    ),
    "one message": ([user("hello")], None),
}


@pytest.mark.parametrize("add_generation_prompt", [False, True])
def test_every_template_renders_as_in_transformers(
    assets: Path, qwen3: Path, add_generation_prompt: bool
) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(qwen3)
    templates = sorted(assets.glob("**/chat_templates/*.jinja"))
    assert len(templates) >= 72
    outcome: Counter[str] = Counter()
    for path in templates:
        template = path.read_text()
        for name, (messages, tools) in SHAPES.items():
            copies = json.loads(json.dumps(messages))
            theirs: str | Exception
            try:
                theirs = tokenizer.apply_chat_template(
                    copies,
                    tools=tools,
                    chat_template=template,
                    tokenize=False,
                    add_generation_prompt=add_generation_prompt,
                )
            except Exception as error:  # noqa: BLE001  templates fail in many ways
                theirs = error
            ours: RenderedText | ConversationError
            try:
                ours = render_template(
                    template,
                    prepare_messages(messages),
                    tools=tools,
                    add_generation_prompt=add_generation_prompt,
                    variables=tokenizer.special_tokens_map,
                )
            except ConversationError as error:
                ours = error
            if isinstance(ours, ConversationError) or isinstance(theirs, Exception):
                assert type(ours) is ConversationError, (path.name, name, theirs)
                assert isinstance(theirs, Exception), (path.name, name, ours)
                outcome["refused"] += 1
                continue
            assert ours.text == theirs, (path.name, name)
            untracked = [run for run in ours.runs if run.origin is UNTRACKED]
            assert not untracked, (path.name, name)
            outcome["equal"] += 1
    assert outcome["equal"] > 4 * outcome["refused"], outcome


def test_only_tags_are_taken_for_generation_tags() -> None:
    assert has_generation_tags("{%- generation -%}x{%- endgeneration -%}")
    assert not has_generation_tags("{% if add_generation_prompt %}x{% endif %}{# {% generation %} #}")
