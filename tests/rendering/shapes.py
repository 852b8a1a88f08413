"""Conversation shapes that agents and chats really have, for sweeps over templates."""

from __future__ import annotations

from typing import Any

from tokscore.rendering import Conversation

Message = dict[str, Any]


def system(content: object) -> Message:
    return {"role": "system", "content": content}


def user(content: object) -> Message:
    return {"role": "user", "content": content}


def assistant(content: object, **more: object) -> Message:
    return {"role": "assistant", "content": content, **more}


def call(arguments: object, identifier: str = "call_00001") -> Message:
    return {"id": identifier, "type": "function", "function": {"name": "f", "arguments": arguments}}


def tool(content: object, identifier: str = "call_00001") -> Message:
    return {"role": "tool", "name": "f", "tool_call_id": identifier, "content": content}


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "description": "d <x> & é",
            "parameters": {
                "type": "object",
                "properties": {"p": {"type": "string", "description": "the p"}},
                "required": ["p"],
            },
        },
    }
]
ARGUMENTS = {"p": 'é"\n', "n": 1, "b": True, "z": None, "l": [1.5, {"k": "v"}]}


def _parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


SHAPES: dict[str, Conversation] = {
    "one answer": Conversation([user("hi"), assistant("yo")]),
    "system": Conversation(
        [system("be good"), user("hi"), assistant("yo"), user("why?"), assistant("because")]
    ),
    "developer": Conversation([{"role": "developer", "content": "dd"}, user("hi"), assistant("yo")]),
    "multi turn": Conversation(
        [user("1"), assistant("2"), user("3"), assistant("4 five"), user("6"), assistant("7"), user("8")]
    ),
    "reasoning": Conversation(
        [
            user("hi"),
            assistant("yo", reasoning_content="think one"),
            user("why?"),
            assistant("so", reasoning_content="think two"),
        ]
    ),
    "reasoning and a tool": Conversation(
        [
            user("hi"),
            assistant("", reasoning_content="call it", tool_calls=[call({"p": "x"})]),
            tool("result"),
            assistant("done", reasoning_content="it worked"),
        ],
        TOOLS,
    ),
    "two tool results": Conversation(
        [
            system("use tools"),
            user("hi"),
            assistant("wait", tool_calls=[call(ARGUMENTS), call({"p": "2"}, "call_00002")]),
            tool("result 1"),
            tool("result 2", "call_00002"),
            assistant("done"),
        ],
        TOOLS,
    ),
    "string arguments, null content": Conversation(
        [user("hi"), assistant(None, tool_calls=[call('{"p": "x"}')]), tool('{"r": 1}'), assistant("done")],
        TOOLS,
    ),
    "agent loop": Conversation(
        [
            user("hi"),
            assistant("", tool_calls=[call({"p": "x"})]),
            tool("result 1"),
            assistant("again", tool_calls=[call({"p": "y"}, "call_00002")]),
            tool("result 2", "call_00002"),
            assistant("done"),
            user("thanks"),
            assistant("bye"),
        ],
        TOOLS,
    ),
    "ends with a call": Conversation([user("hi"), assistant("", tool_calls=[call({"p": "x"})])], TOOLS),
    "ends with a result": Conversation(
        [user("hi"), assistant("", tool_calls=[call({"p": "x"})]), tool("result")], TOOLS
    ),
    "tools without a call": Conversation([user("hi"), assistant("yo"), user("q"), assistant("a")], TOOLS),
    "empty content": Conversation([user(""), assistant(""), user("q"), assistant("a")]),
    "content parts": Conversation([user(_parts("hi", " there")), assistant(_parts("yo"))]),
    "results in parts": Conversation(
        [
            system(_parts("be good")),
            user("hi"),
            assistant(_parts("wait"), tool_calls=[call({"p": "x"})]),
            tool(_parts("result", " 2")),
            assistant(_parts("done")),
        ],
        TOOLS,
    ),
    "unicode": Conversation([user("e\u0301x 🎉 你好 \u200d"), assistant("İ ǅ ß <b>&amp;")]),
    "control tokens": Conversation(
        [user("a<|im_end|>\n<|im_start|>assistant\nb</think>c"), assistant("No<|eot_id|> way")]
    ),
    "white space": Conversation([system("  s \n"), user("\n hi \n\n"), assistant("\n\n Hello  \n")]),
    "think tags in content": Conversation(
        [user("hi"), assistant("<think>\nold\n</think>\n\nyo"), user("q"), assistant("a</think>b")]
    ),
    "greeting": Conversation([assistant("welcome"), user("hi"), assistant("yo")]),
    "two answers": Conversation([user("hi"), assistant("one"), assistant("two"), user("q"), assistant("a")]),
    "question": Conversation([user("hello")]),
}
