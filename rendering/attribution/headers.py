"""How much of a turn the generation prompt supplied, and a second look at the answer behind it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tokscore.rendering.attribution.prompts import GenerationPrompt, Prompts
from tokscore.rendering.attribution.separators import common_prefix
from tokscore.rendering.attribution.turns import Turn

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


FLAG = b"\x01"
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


class View(NamedTuple):
    """One rendered conversation, as the rule sees it: the tokens that stand for text.

    Single places are looked up and looked for, for which arrays of numpy take ten times as long.
    """

    text: str
    token_ids: NDArray[np.int32]
    starts: memoryview[int]
    stops: memoryview[int]
    has_input: bytes
    is_control: bytes
    is_eos: bytes
    is_template_eos: bytes  # an eos that no message typed
    has_generation_prompt: bool
    is_checked: bool  # answers need be confirmed: no tags do it


class Header(NamedTuple):
    """The opener of an answer, in characters.

    Attributes:
        start: First one.
        stop: One past the last; the answer begins behind it.
        is_whole: All of a generation prompt is there; else only its first tokens.
        goes_on: There is none, and the answer goes on in the turn of the answer before it.
        is_aligned: It is not whole, and has a control token behind what differs from the prompt.
    """

    start: int
    stop: int
    is_whole: bool
    goes_on: bool = False
    is_aligned: bool = False


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
    if header is not None or not _opens_alone(view, turn, before):
        return header
    if (empty := prompts.empty_after(before)) is None:
        return None
    ahead = view.text[: turn.own_start]
    stop = turn.own_start - (empty.n_blank if not ahead[len(ahead) - empty.n_blank :].strip() else 0)
    return Header(stop, stop, is_whole=True)


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
    """What the turn and a prompt open with alike, by the longest common token prefix with any prompt.

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
                start, stop = max(view.starts[opening], turn.start), view.stops[opening + n - 1]
                if view.text[start:stop].strip():
                    opened = Header(start, stop, is_whole=False)
                    best, n_best = _rest(view, opened, opening, prompt, n, body), n
    return best


def _rest(view: View, header: Header, opening: int, prompt: GenerationPrompt, n: int, body: int) -> Header:
    """The same up to where a header and a prompt of which `n` tokens are alike end alike.

    A name or a number may differ between control tokens that both have. White space may be part of one token
    with the answer.
    """
    first, left, is_aligned = opening, prompt.token_ids[n:], False
    body = first_flagged(view.is_eos, opening + n, body)
    for k in range(body - 1, opening + n - 1, -1):
        if view.is_control[k] and view.token_ids[k] in left:
            at = len(left) - 1 - left[::-1].index(view.token_ids[k])
            first, n = k, common_prefix(view.token_ids[k:body].tolist(), left[at:])
            is_aligned = True
            break
    stop = view.stops[first + n - 1]
    opened = view.text[header.start if first == opening else view.starts[first] : stop]
    ahead = prompt.text[max(prompt.text.rfind(opened), 0) + len(opened) :]
    n_blank = common_prefix(_blank(ahead), _blank(view.text[stop : stop + len(ahead)]))
    return header._replace(stop=stop + n_blank, is_aligned=is_aligned)


def _blank(text: str) -> str:
    """The white space that a text opens with."""
    return text[: len(text) - len(text.lstrip())]


def _openings(view: View, low: int, body: int, prompts: Sequence[GenerationPrompt]) -> Iterator[int]:
    """Tokens of the turn at which its header may begin, in order."""
    first_ids = {prompt.token_ids[0] for prompt in prompts if prompt.token_ids}
    for i, token_id in enumerate(view.token_ids[low:body].tolist()):
        if token_id in first_ids:
            yield low + i


def _opens_alone(view: View, turn: Turn, before: str) -> bool:
    """Whether nothing but white space that nobody owns, or the start of the text, precedes the turn's own."""
    return not before or not view.text[turn.start : turn.own_start].strip()


def first_flagged(flags: bytes, start: int, stop: int) -> int:
    """First flagged position from `start` on, `stop` without one."""
    at = flags.find(FLAG, start, stop)
    return stop if at < 0 else at


def last_flagged(flags: bytes, start: int, stop: int) -> int:
    """Last flagged position before `stop`, `start - 1` without one."""
    at = flags.rfind(FLAG, start, stop)
    return start - 1 if at < 0 else at


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
    start = view.starts[answer.start]
    stop = view.stops[answer.stop - 1]
    return (
        _begins_behind_prompt(view, turn, answer.start, header, prompts, before)
        and (turn.foreign >= stop or (answer.has_stop and turn.foreign >= view.starts[answer.stop - 1]))
        and not _holds_opener(view, view.text[header.start : header.stop], start, stop)
        and (answer.has_stop or _ends_with_turn(view, turn, answer))
    )


def _ends_with_turn(view: View, turn: Turn, answer: Answer) -> bool:
    """Whether no whole token of the turn follows an answer."""
    return answer.stop >= len(view.stops) or view.stops[answer.stop] > turn.own_stop


def _begins_behind_prompt(
    view: View, turn: Turn, first: int, header: Header, prompts: Prompts, before: str
) -> bool:
    """Whether a prompt ends where an answer begins, or within the token before its first.

    If the turn opens like a prompt that it does not hold whole, nothing that only names the turn may follow.
    """
    start = view.starts[first]
    if header.goes_on:
        return start == header.stop
    if header.start == header.stop:
        return start >= header.stop and prompts.empty_after(before) is not None
    earliest = view.starts[first - 1] if first else start
    for end in range(start, earliest, -1):
        if view.text.endswith(prompts.texts, turn.start, end):
            return True
    return not header.is_whole and (header.is_aligned or (not prompts.vary and header.stop >= turn.named))


def _holds_opener(view: View, opener: str, start: int, stop: int) -> bool:
    """Whether the template opens the turn again within an answer.

    Behind a control token that ends no turn, a model goes on and writes the opener itself (gpt-oss).
    """
    if not (opener := opener.strip()):
        return False
    at = view.text.find(opener, start, stop)
    while at >= 0:
        token = bisect_right(view.stops, at)
        goes_on = token > 0 and view.is_control[token - 1] and not view.is_eos[token - 1]
        if not view.has_input[token] and not goes_on:
            return True
        at = view.text.find(opener, at + 1, stop)
    return False
