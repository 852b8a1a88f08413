"""Conversations that a chat template is looked at with."""

from __future__ import annotations

from tokscore.rendering.conversations.conversation import Conversation
from tokscore.rendering.templates.probes import ANSWER, TOOL, USER, Messages, tool_rounds

_REASONING = {"reasoning_content": "hm"}
_THOUGHT = {**ANSWER, **_REASONING}
_AGAIN = {**USER, "content": "so"}
CALL_AND_RESULT = next(tool_rounds())[1:]


def shapes() -> dict[str, Conversation]:
    """The conversations that a template is looked at with, by name."""
    system = {**USER, "role": "system", "content": "be good"}
    developer = {**system, "role": "developer"}
    parts = [{"type": "text", "text": "hi"}]
    text_call = [message for messages in list(tool_rounds())[3:4] for message in messages[1:]]
    bare: dict[str, Messages] = {
        "one answer": [USER, ANSWER],
        "two turns": [USER, ANSWER, _AGAIN, ANSWER],
        "system": [system, USER, ANSWER],
        "developer": [developer, USER, ANSWER],
        "system in the middle": [USER, ANSWER, system, _AGAIN, ANSWER],
        "greeting": [ANSWER, USER, ANSWER],
        "two answers": [USER, ANSWER, ANSWER],
        "two questions": [USER, _AGAIN, ANSWER],
        "question": [USER],
        "empty answer": [USER, {**ANSWER, "content": ""}, _AGAIN, ANSWER],
        "content in parts": [{**USER, "content": parts}, {**ANSWER, "content": parts}],
        "reasoning": [USER, _THOUGHT],
        "reasoning in two turns": [USER, _THOUGHT, _AGAIN, _THOUGHT],
    }
    with_tools: dict[str, Messages] = {
        "call and result": [USER, *CALL_AND_RESULT, ANSWER],
        "arguments as text": [USER, *text_call, ANSWER],
        "call with null content": [USER, {**CALL_AND_RESULT[0], "content": None}, CALL_AND_RESULT[1]],
        "reasoning and a call": [USER, {**CALL_AND_RESULT[0], **_REASONING}, CALL_AND_RESULT[1], _THOUGHT],
        "calls in two turns": [USER, *CALL_AND_RESULT, ANSWER, _AGAIN, *CALL_AND_RESULT, ANSWER],
        "ends with a call": [USER, CALL_AND_RESULT[0]],
    }
    return {name: Conversation(messages) for name, messages in bare.items()} | {
        name: Conversation(messages, [TOOL]) for name, messages in with_tools.items()
    }
