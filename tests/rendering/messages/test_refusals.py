from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.rendering.families import Families
from tokscore.dataset.choices import MessageForm
from tokscore.dataset.errors import ConversationError
from tokscore.rendering import ChatTokenizer, Conversation, Renderer

Message = dict[str, Any]
USER = {"role": "user", "content": "hi"}


def called(arguments: object, content: object = "") -> list[Message]:
    call = {"id": "call00001", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return [USER, USER, {"role": "assistant", "content": content, "tool_calls": [call]}]


def refused(renderer: Renderer, messages: list[Message], **more: Any) -> ConversationError:
    with pytest.raises(ConversationError) as caught:
        renderer.render(Conversation(messages, **more))
    return caught.value


@pytest.mark.parametrize(
    ("template", "messages", "place", "fix"),
    [
        ("qwen_own", called({}, None), "messages[2].content is missing", "missing content becomes"),
        (
            "glm4moe",
            called("{}"),
            "messages[2].tool_calls[0].function.arguments is JSON text",
            "become objects",
        ),
        (
            "qwen2_5",
            [USER, {"role": "assistant", "content": [{"type": "text", "text": "a"}]}],
            "messages[1].content is a list",
            "parts become one text (messages[1])",
        ),
        (
            "deepseekv3",
            [
                USER,
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}],
                },
            ],
            "messages[1].tool_calls[0].type is missing",
            'calls get their "type"',
        ),
        (
            "gemma3",
            [{"role": "developer", "content": "d"}, USER],
            "messages[0] has the role 'developer'",
            "the role developer becomes system (messages[0])",
        ),
    ],
)
def test_what_a_template_refuses_is_named_with_what_works(
    families: Families, template: str, messages: list[Message], place: str, fix: str
) -> None:
    source = families.own_template("qwen3") if template == "qwen_own" else None
    renderer = families.renderer(template, source=source, messages=MessageForm.AS_IS)
    error = refused(renderer, messages)
    assert place in error.reason
    assert fix in error.hint
    assert "`messages='auto'`" in error.hint
    families.renderer(template, source=source).render(Conversation(messages))


def test_arguments_that_are_broken_are_named(families: Families) -> None:
    error = refused(families.renderer("glm4moe"), called('{"a": '))
    assert "messages[2].tool_calls[0].function.arguments is JSON text" in error.reason
    assert "`messages='server'`" in error.hint
    assert "become {}" in error.hint
    families.renderer("glm4moe", messages=MessageForm.SERVER).render(Conversation(called('{"a": ')))


def template(tiny_model: Path, source: str) -> Renderer:
    return Renderer(ChatTokenizer(str(tiny_model), template=source))


def test_a_role_that_a_template_does_not_take_is_named(tiny_model: Path) -> None:
    source = "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}{{ m.content }}{% endfor %}"
    error = refused(template(tiny_model, source), [USER, {"role": "tool", "content": "7"}])
    assert error.reason == "the chat template refuses the conversation: no tools (at messages[1])"
    assert "without the messages of the role 'tool'" in error.hint


def test_tools_that_a_template_does_not_take_are_named(tiny_model: Path) -> None:
    source = "{% if tools %}{{ tools[0].name.x.y }}{% endif %}{{ messages[0].content }}"
    error = refused(
        template(tiny_model, source), [USER], tools=[{"type": "function", "function": {"name": "f"}}]
    )
    assert "without its tools" in error.hint


def test_where_nothing_works_the_hint_says_what_templates_may_lack(tiny_model: Path) -> None:
    error = refused(template(tiny_model, "{{ raise_exception('never') }}"), called("{}"))
    assert "Not every template takes tools" in error.hint
