"""How much of a turn the generation prompt supplied."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tokscore.rendering.attribution.prompts import GenerationPrompt, Prompts, common_prefix
from tokscore.rendering.attribution.turns import Turn

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class View(NamedTuple):
    """One rendered conversation, as the rule sees it: the tokens that stand for text."""

    text: str
    token_ids: NDArray[np.int32]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    has_input: NDArray[np.bool_]
    is_control: NDArray[np.bool_]
    is_eos: NDArray[np.bool_]
    is_template_eos: NDArray[np.bool_]  # an eos that no message typed
    has_generation_prompt: bool
    is_checked: bool  # answers need be confirmed: no tags do it


class Header(NamedTuple):
    """The opener of an answer, in characters.

    Attributes:
        start: First one.
        stop: One past the last; the answer begins behind it.
        is_whole: All of a generation prompt is there; else only its first tokens.
    """

    start: int
    stop: int
    is_whole: bool


def find_header(view: View, turn: Turn, low: int, high: int, prompts: Prompts, before: str) -> Header | None:
    """The opener of a turn, None where no generation prompt tells which it is.

    It may lie behind other template text that opens the turn, such as BOS or a default system prompt. Behind
    a message after which the template prints nothing, the answer opens with its own text.

    Args:
        view: The rendered conversation.
        turn: Of the message.
        low: First token of the turn.
        high: One past its last token.
        prompts: What the template prints before an answer.
        before: Role of the message before it, "" for the first.
    """
    candidates = prompts.before(before)
    header = _whole(view.text, turn, candidates) or _partial(view, turn, low, high, candidates, prompts)
    if header is None and prompts.is_empty_after(before) and _opens_alone(view, turn, before):
        return Header(turn.own_start, turn.own_start, is_whole=True)
    return header


def _whole(text: str, turn: Turn, candidates: Sequence[GenerationPrompt]) -> Header | None:
    for opener in (prompt.text for prompt in candidates):
        if not opener.strip():
            if text.startswith(opener, turn.own_start):
                return Header(turn.own_start, turn.own_start + len(opener), is_whole=True)
        elif (at := text.rfind(opener, turn.start, turn.body + len(opener) - 1)) >= 0:
            return Header(at, at + len(opener), is_whole=True)
    return None


def _partial(
    view: View, turn: Turn, low: int, high: int, candidates: Sequence[GenerationPrompt], prompts: Prompts
) -> Header | None:
    """The longest common token prefix of the turn with any prompt, without text of a message.

    What opens the turn of a user just as well says nothing.
    """
    longest = max((len(prompt.token_ids) for prompt in candidates), default=0)
    low += int(view.starts[low] < turn.start)  # the end of the text before may merge with white space here
    body = first_flagged(view.has_input, low, high)
    best, n_best = None, prompts.n_role_tokens
    for opening in _openings(view, low, body, candidates):
        ids = view.token_ids[opening : min(opening + longest, body)].tolist()
        for prompt in candidates:
            n = common_prefix(ids, prompt.token_ids)
            if n > n_best:
                start, stop = max(int(view.starts[opening]), turn.start), int(view.stops[opening + n - 1])
                if view.text[start:stop].strip():
                    best, n_best = Header(start, stop, is_whole=False), n
    return best


def _openings(view: View, low: int, body: int, prompts: Sequence[GenerationPrompt]) -> Iterator[int]:
    """Tokens of the turn at which its header may begin, in order."""
    first_ids = {prompt.token_ids[0] for prompt in prompts if prompt.token_ids}
    for i, token_id in enumerate(view.token_ids[low:body].tolist()):
        if token_id in first_ids:
            yield low + i


def _opens_alone(view: View, turn: Turn, before: str) -> bool:
    """Whether nothing but white space that nobody owns, or the start of the text, precedes the turn's own."""
    return not before or not view.text[turn.start : turn.own_start].strip()


def first_flagged(flags: NDArray[np.bool_], start: int, stop: int) -> int:
    """First flagged position from `start` on, `stop` without one."""
    if start >= stop:
        return stop
    k = start + int(flags[start:stop].argmax())
    return k if flags[k] else stop


def last_flagged(flags: NDArray[np.bool_], start: int, stop: int) -> int:
    """Last flagged position before `stop`, `start - 1` without one."""
    if start >= stop:
        return start - 1
    k = stop - 1 - int(flags[start:stop][::-1].argmax())
    return k if flags[k] else start - 1
