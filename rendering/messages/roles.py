"""Roles that are likely meant to be others: a template takes `asistant` for a role of its own."""

from __future__ import annotations

import re
from difflib import get_close_matches

# Of servers, of published templates, and of the records that formats read.
KNOWN_ROLES = (
    "agent",
    "analysis",
    "assistant",
    "assistant_tool_call",
    "bot",
    "chatbot",
    "chatgpt",
    "code",
    "content",
    "context",
    "critic",
    "developer",
    "document",
    "documents",
    "environment",
    "execution",
    "function",
    "function_call",
    "function_response",
    "function_result",
    "gpt",
    "human",
    "interpreter",
    "ipython",
    "latest_reminder",
    "model",
    "observation",
    "python",
    "root",
    "system",
    "tool",
    "tool_call",
    "tool_calls",
    "tool_output",
    "tool_outputs",
    "tool_response",
    "tool_responses",
    "tool_result",
    "tool_results",
    "tool_use",
    "tools",
    "user",
    "user_context",
)
# Below it `observer` is like `observation`; `usr` and `asistant` are above it.
_LIKENESS = 0.75
_NUMBER = re.compile(r"[\W_]*\d+$")


def meant_role(role: str, template: str) -> str | None:
    """The role that a role is likely meant to be; None where it is known, or like none that is.

    Numbered ones, such as `user_2`, are no mistakes, nor are those that go on where a known one ends, such as
    `model_a` and `coder`, or begin otherwise.

    Args:
        role: Of a message.
        template: Jinja source; what it has in quotes is known.
    """
    if f"'{role}'" in template or f'"{role}"' in template or _NUMBER.sub("", role) in KNOWN_ROLES:
        return None
    read = role.strip().casefold()
    if read not in KNOWN_ROLES and any(read.startswith(known) for known in KNOWN_ROLES):
        return None
    close = get_close_matches(read, KNOWN_ROLES, n=1, cutoff=_LIKENESS)
    return close[0] if close and close[0][0] == read[0] else None
