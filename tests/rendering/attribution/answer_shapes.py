"""Conversation shapes in which every word occurs once, so that each is found in a rendered text."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from tests.rendering.shapes import TOOLS, assistant, call, system, tool, user
from tokscore.rendering import Conversation

_SYLLABLES = ("ba", "de", "fi", "go", "ku", "la", "me", "ni", "po", "ru", "sa", "te", "vi", "zo")


def words(seed: int) -> Iterator[str]:
    """Words of eight letters, none twice."""
    rng, seen = random.Random(seed), set()
    while True:
        word = "".join(rng.choice(_SYLLABLES) for _ in range(4))
        if word not in seen:
            seen.add(word)
            yield word


_WORDS = words(0)


def w(pattern: str = "{} {}.") -> str:
    return pattern.format(*(next(_WORDS) for _ in range(pattern.count("{}"))))


def q(pattern: str = "{} {}?") -> dict[str, Any]:
    return user(w(pattern))


def a(pattern: str = "{} {}.", **more: object) -> dict[str, Any]:
    return assistant(w(pattern), **more)


def called(n: int = 1, content: object = "", first: int = 1, **more: object) -> dict[str, Any]:
    return assistant(content, tool_calls=[_call(first + k) for k in range(n)], **more)


def _call(number: int) -> dict[str, Any]:
    return call({"p": w("{}")}, f"call{number:05}")


def result(number: int = 1, pattern: str = "{} {}") -> dict[str, Any]:
    return tool(w(pattern), f"call{number:05}")


def parts(message: dict[str, Any]) -> dict[str, Any]:
    first, rest = message["content"][:6], message["content"][6:]
    return {**message, "content": [{"type": "text", "text": text} for text in (first + rest, w(" {}"))]}


def named(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "name": w("{}")}


def thought(pattern: str = "{}, {}") -> str:
    return w(pattern)


_R = "reasoning_content"
ANSWER_SHAPES: dict[str, Conversation] = {
    "one answer": Conversation([q(), a()]),
    "two turns": Conversation([q(), a(), q(), a()]),
    "three turns and a question": Conversation([q(), a(), q(), a(), q(), a(), q()]),
    "system": Conversation([system(w()), q(), a()]),
    "system, two turns": Conversation([system(w()), q(), a(), q(), a()]),
    "system in the middle": Conversation([q(), a(), system(w()), q(), a()]),
    "system twice": Conversation([system(w()), system(w()), q(), a()]),
    "developer": Conversation([{"role": "developer", "content": w()}, q(), a()]),
    "question": Conversation([q()]),
    "system and question": Conversation([system(w()), q()]),
    "greeting": Conversation([a(), q(), a()]),
    "greeting behind system": Conversation([system(w()), a(), q(), a()]),
    "two answers": Conversation([q(), a(), a(), q(), a()]),
    "two questions": Conversation([q(), q(), a()]),
    "empty question": Conversation([user(""), a(), q(), a()]),
    "empty answer": Conversation([q(), assistant(""), q(), a()]),
    "white space": Conversation([user(w("\n {} {} \n\n")), assistant(w("\n\n {} {}  \n")), q(), a()]),
    "newlines": Conversation([user(w("{}\n")), assistant(w("\n{}\n\n{}\n"))]),
    "leading space": Conversation(
        [user(w("{} ")), assistant(w(" {}")), user(w(" {}")), assistant(w("  {}"))]
    ),
    "punctuation": Conversation([q("{}!?"), assistant(w("({})")), q("<{}>"), assistant(w("**{}**:\n- {}"))]),
    "unicode": Conversation([user(w("é {} 🎉 你好")), assistant(w("{} — ß {}…"))]),
    "long": Conversation([q("{} " * 40), a("{} " * 60), q("{} " * 30), a("{}\n" * 50)]),
    "code": Conversation([q(), assistant(w("```py\n{} = {{}}\n```\n{}".replace("{{}}", "1")))]),
    "json answer": Conversation([q(), assistant('{"k": "' + w("{}") + '"}')]),
    "parts": Conversation([parts(q()), parts(a()), parts(q()), parts(a())]),
    "reasoning": Conversation([q(), a(**{_R: thought()})]),
    "reasoning, two turns": Conversation([q(), a(**{_R: thought()}), q(), a(**{_R: thought()})]),
    "reasoning once": Conversation([q(), a(**{_R: thought()}), q(), a()]),
    "reasoning last": Conversation([q(), a(), q(), a(**{_R: thought()})]),
    "think tags in content": Conversation([q(), assistant(w("<think>\n{}\n</think>\n\n{}")), q(), a()]),
    "think tags in the last": Conversation([q(), a(), q(), assistant(w("<think>\n{}\n</think>\n\n{}"))]),
    "call": Conversation([q(), called(), result(), a()], TOOLS),
    "call with words": Conversation([q(), called(content=w()), result(), a()], TOOLS),
    "call, null content": Conversation([q(), called(content=None), result(), a()], TOOLS),
    "call without tools": Conversation([q(), called(), result(), a()]),
    "call and reasoning": Conversation(
        [q(), called(**{_R: thought()}), result(), a(**{_R: thought()})], TOOLS
    ),
    "two calls": Conversation([q(), called(2), result(1), result(2), a()], TOOLS),
    "calls in turn": Conversation(
        [system(w()), q(), called(), result(), called(first=2), result(2), a(), q(), a()], TOOLS
    ),
    "calls in two turns": Conversation(
        [q(), called(), result(), a(), q(), called(first=2), result(2), a()], TOOLS
    ),
    "calls with words in turn": Conversation(
        [q(), called(content=w()), result(), called(content=w(), first=2), result(2), a()], TOOLS
    ),
    "reasoning and calls in turn": Conversation(
        [
            q(),
            called(**{_R: thought()}),
            result(),
            called(content=w(), first=2, **{_R: thought()}),
            result(2),
            a(**{_R: thought()}),
            q(),
            a(**{_R: thought()}),
        ],
        TOOLS,
    ),
    "ends with a call": Conversation([q(), called()], TOOLS),
    "ends with a result": Conversation([q(), called(), result()], TOOLS),
    "tools without a call": Conversation([q(), a(), q(), a()], TOOLS),
    "results in parts": Conversation([q(), called(), parts(result()), parts(a())], TOOLS),
    "names": Conversation([named(q()), named(a()), named(q()), named(a())]),
}
