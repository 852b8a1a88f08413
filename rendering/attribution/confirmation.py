"""A second look at every answer that the rule found, by other means than it was found with."""

from __future__ import annotations

from typing import NamedTuple

from tokscore.rendering.attribution.headers import Header, View
from tokscore.rendering.attribution.prompts import Prompts
from tokscore.rendering.attribution.turns import Turn

UNCONFIRMED = "the template's own renderings do not confirm where its sampled tokens begin and end"


class Answer(NamedTuple):
    """Where the rule found the answer of one assistant message, in tokens.

    Attributes:
        turn_start: First token of the turn; the header lies from here to `start`.
        start: First sampled token.
        stop: One past the last.
        has_stop: The last one ends the turn.
    """

    turn_start: int
    start: int
    stop: int
    has_stop: bool


def is_confirmed(
    view: View, turn: Turn, answer: Answer, header: Header, prompts: Prompts, before: str
) -> bool:
    """Whether an answer is what the template's renderings say an answer is.

    It begins where a generation prompt ends, holds no text of another message and no second opener of a
    turn, and ends at a stop or with its turn.

    Args:
        view: The rendered conversation.
        turn: Of the message.
        answer: Its answer.
        header: Its opener.
        prompts: What the template prints before an answer.
        before: Role of the message before it, "" for the first.
    """
    if answer.start >= answer.stop:
        return True
    start = int(view.starts[answer.start])
    stop = int(view.stops[answer.stop - 1])
    return (
        _begins_behind_prompt(view, turn, answer.start, header, prompts, before)
        and (turn.foreign >= stop or (answer.has_stop and turn.foreign >= view.starts[answer.stop - 1]))
        and not _holds_opener(view, view.text[header.start : header.stop], start, stop)
        and (answer.has_stop or stop >= turn.own_stop)
    )


def _begins_behind_prompt(
    view: View, turn: Turn, first: int, header: Header, prompts: Prompts, before: str
) -> bool:
    """Whether a prompt ends where an answer begins, or within the token before its first."""
    start = int(view.starts[first])
    if header.start == header.stop:
        return start >= turn.own_start and prompts.is_empty_after(before)
    earliest = int(view.starts[first - 1]) if first else start
    for end in range(start, earliest, -1):
        if view.text.endswith(prompts.texts, turn.start, end):
            return True
    opened = view.text[header.start : start].rstrip()
    return not header.is_whole and any(text.startswith(opened) for text in prompts.texts)


def _holds_opener(view: View, opener: str, start: int, stop: int) -> bool:
    """Whether the template opens the turn again within an answer.

    Behind a control token that ends no turn, a model goes on and writes the opener itself (gpt-oss).
    """
    if not (opener := opener.strip()):
        return False
    at = view.text.find(opener, start, stop)
    while at >= 0:
        token = int(view.stops.searchsorted(at, "right"))
        goes_on = token > 0 and view.is_control[token - 1] and not view.is_eos[token - 1]
        if not view.has_input[token] and not goes_on:
            return True
        at = view.text.find(opener, at + 1, stop)
    return False
