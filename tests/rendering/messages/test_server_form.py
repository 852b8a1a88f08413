"""Messages with `messages=server`: a test for each line of the table in docs/messages.md."""

from __future__ import annotations

from typing import Any

import pytest

from tests.rendering.families import Families
from tokscore.dataset.choices import MessageForm
from tokscore.dataset.tokens import MessageFlag
from tokscore.rendering import Conversation, Renderer
from tokscore.rendering.attribution.renderer import Verify

Message = dict[str, Any]
USER = {"role": "user", "content": "Is there rain?"}
CALL = {"id": "call_a1b2c3d4e5", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
BARE = {"name": "f", "arguments": {"a": 1}}
# Prints all that the lines are about, of the roles that most templates know.
TEMPLATE = (
    "{% if tools is not none %}{{ tools | tojson }}{% endif %}"
    "{% for m in messages if m.role in ['system', 'user', 'assistant', 'tool'] %}<|im_start|>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content }}{% elif m.content is none or m.content is undefined %}nothing"
    "{% else %}{{ raise_exception('content is no text') }}{% endif %}"
    "{% if m.tool_calls is defined %}{{ m.tool_calls | tojson }}{% endif %}"
    "{% if m.refusal is defined %}refusal{% endif %}{{ m.reasoning_content }}{{ m.reasoning_details }}{{ m.weight }}"
    "<|im_end|>\n{% endfor %}"
)


def answer(**more: object) -> Message:
    return {"role": "assistant", "content": "So.", **more}


def called(call: object) -> Message:
    return answer(tool_calls=[call])


def with_arguments(arguments: object) -> Message:
    return called({**CALL, "function": {"name": "f", "arguments": arguments}})


def parts(role: str) -> Message:
    return {"role": role, "content": [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}]}


F = MessageFlag
LINES: dict[str, tuple[list[Message], list[Message], MessageFlag | None]] = {
    "arguments as text": ([with_arguments('{"a": 1}')], [called(CALL)], F.ARGUMENTS),
    "arguments as an empty text": ([with_arguments("")], [with_arguments({})], F.ARGUMENTS),
    "arguments that are no JSON": ([with_arguments("{")], [with_arguments({})], F.ARGUMENTS_LOST),
    "arguments that are no object": ([with_arguments("[1]")], [with_arguments({})], F.ARGUMENTS_LOST),
    "content null": ([{**called(CALL), "content": None}], [{**called(CALL), "content": ""}], F.EMPTY_CONTENT),
    "content missing": ([{"role": "assistant"}], [answer(content="")], F.EMPTY_CONTENT),
    **{
        f"parts of {role}": ([parts(role)], [{"role": role, "content": "One.\nTwo."}], F.PARTS)
        for role in ("system", "user", "assistant", "tool")
    },
    "function_call and role function": (
        [answer(function_call=BARE), {"role": "function", "name": "f", "content": "7"}],
        [
            called({"id": "call00001", "type": "function", "function": BARE}),
            {"role": "tool", "content": "7", "tool_call_id": "call00001"},
        ],
        F.FUNCTION_CALL,
    ),
    "reasoning_details": ([answer(reasoning_details="r")], [answer()], F.KEYS),
    "call without type": ([called({"id": CALL["id"], "function": BARE})], [called(CALL)], F.CALL_FORM),
    "bare call": ([called({"id": CALL["id"], **BARE})], [called(CALL)], F.CALL_FORM),
    "keys that are null": ([answer(refusal=None, audio=None)], [answer()], None),
    "no calls": ([answer(tool_calls=[])], [answer()], F.NO_CALLS),
    "reasoning": ([answer(reasoning="r")], [answer(reasoning_content="r")], None),
    "thinking": ([answer(thinking="r")], [answer(reasoning_content="r")], None),
    "ids that the template does not check": ([called(CALL)], [called(CALL)], None),
    "developer": ([{"role": "developer", "content": "d"}], [{"role": "system", "content": "d"}], F.DEVELOPER),
    "other keys": ([answer(weight=1)], [answer()], F.KEYS),
}


def renderer(families: Families, template: str = TEMPLATE) -> Renderer:
    return families.renderer("qwen3", source=template, messages=MessageForm.SERVER, verify=Verify.FULL)


def printed(template: str, messages: list[Message], families: Families) -> str:
    """The messages by transformers."""
    hf = families.renderer("qwen3").tokenizer.hf
    return str(hf.apply_chat_template(messages, chat_template=template, tokenize=False))


@pytest.mark.parametrize("line", LINES)
def test_a_line_of_the_table_is_shown_as_it_says(families: Families, line: str) -> None:
    given, shown, flag = LINES[line]
    tokens = renderer(families).render(Conversation([USER, *given]))
    assert tokens.text == printed(TEMPLATE, [USER, *shown], families)
    changes = {each for message in tokens.messages for each in message.flags} & set(MessageFlag)
    assert flag is None or flag in changes
    assert flag is not None or not changes & {case[2] for case in LINES.values()}


def test_ids_that_the_template_checks_are_shortened(families: Families) -> None:
    template = TEMPLATE.replace(
        "{% if m.tool_calls is defined %}",
        "{% for c in m.tool_calls or [] if c.id | length != 9 %}{{ raise_exception('nine, please') }}{% endfor %}"
        "{% if m.tool_calls is defined %}",
    )
    tokens = renderer(families, template).render(Conversation([USER, called(CALL)]))
    assert '"id": "1b2c3d4e5"' in str(tokens.text)
    assert F.CALL_IDS in tokens.messages[1].flags


def test_an_empty_list_of_tools_is_left_out(families: Families) -> None:
    shown = renderer(families).print(Conversation([USER], tools=[]), 0)
    assert shown.rendered.text == printed(TEMPLATE, [USER], families)
    assert shown.conversation.status == "empty_tools_left_out"
