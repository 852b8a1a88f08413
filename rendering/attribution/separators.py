"""What a chat template prints behind an answer only where a message follows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from tokscore.rendering.attribution.owners import run_table
from tokscore.rendering.templates.probes import LATER, Messages, probe, tool_rounds, with_parts
from tokscore.rendering.templates.render import RenderedText


def find_separators(template: str, variables: Mapping[str, Any]) -> tuple[str, ...]:
    """Texts that separate an answer from the message behind it, the longest first.

    An answer that ends the conversation lacks them, so that no model writes them, unless they hold its stop.

    Args:
        template: Jinja source.
        variables: Special tokens and template kwargs, as in the conversations.
    """
    found = set()
    for messages in _followed():
        alone, followed = probe(template, variables, messages[:2]), probe(template, variables, messages)
        if alone is not None and followed is not None:
            ending, whole = closing(alone, 1), closing(followed, 1)
            found.add(whole[common_prefix(ending, whole) :])
    return tuple(sorted(found - {""}, key=len, reverse=True))


def _followed() -> Iterator[Messages]:
    """A question, an answer and a message."""
    for messages in (LATER, *tool_rounds()):
        yield messages
        yield with_parts(messages)


def closing(printed: RenderedText, message: int) -> str:
    """What the template prints behind the last text of a message, in the same iteration of its loop."""
    runs = run_table(printed.runs)
    written = np.flatnonzero(runs.writer == message)
    inputs = np.flatnonzero(runs.input_of == message)
    if not len(written) or not len(inputs):
        return ""
    return printed.text[runs.stops[inputs[-1]] : runs.stops[written[-1]]]


def common_prefix(left: Iterable[object], right: Iterable[object]) -> int:
    """How many ids or characters two sequences begin with alike."""
    n = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        n += 1
    return n
