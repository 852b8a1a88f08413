"""Which tokens a model generated, for any chat template.

Nothing here knows a model family. The template itself says what it puts before an answer (its generation
prompt) and the tokenizer says which ids end a turn; what lies between was sampled. `{% generation %}` tags,
where a template has them, decide instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tokscore.rendering.attribution import RunTable, TokenOwners
from tokscore.rendering.prompts import GenerationPrompt, Prompts, find_prompts
from tokscore.rendering.rendered import NO_MESSAGE, MessageFlag
from tokscore.rendering.tokenizer import ChatTokenizer, Encoding

if TYPE_CHECKING:
    from numpy.typing import NDArray

NOT_RENDERED = "the template prints nothing of it"
NOTHING_TOKENIZED = "no token lies in its text"
TOOL_RESULTS_INSIDE = "tool results lie inside the turn, and no end-of-turn token before them"
INPUT_BEHIND_RESULTS = "its own text goes on behind the tool results in the same turn"
NO_PROMPT = "its turn opens with template text that no generation prompt supplies"


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


class SampledTokens(NamedTuple):
    """Which tokens were sampled, and what is uncertain about it.

    Attributes:
        mask: int8, shape [tokens]: 1 sampled, 0 not, -1 cannot be told.
        flags: By message index.
        unknown: Reason by message index, for messages whose tokens are -1.
        answers: By message index, in the order of the conversation; none for unknown messages.
    """

    mask: NDArray[np.int8]
    flags: dict[int, list[str]]
    unknown: dict[int, str]
    answers: dict[int, Answer]


class _View(NamedTuple):
    """One rendered conversation, as the rule sees it."""

    text: str
    runs: RunTable
    encoding: Encoding
    owners: TokenOwners
    is_control: NDArray[np.bool_]
    is_eos: NDArray[np.bool_]
    has_generation_prompt: bool


class SampledRule:
    """The rule for one template with one set of variables."""

    def __init__(
        self, tokenizer: ChatTokenizer, variables: Mapping[str, Any]
    ) -> None:  # Any: template kwargs
        """Prepare the rule.

        Args:
            tokenizer: Tokenizer with its template.
            variables: Special tokens and template kwargs, as in the conversations.
        """
        self._tokenizer = tokenizer
        self._variables = variables
        self._eos = np.array(sorted(tokenizer.eos_ids), np.int32)
        self._control = np.array(sorted(tokenizer.special_ids), np.int32)
        self._prompts: dict[tuple[str, bool], Prompts] = {}

    def apply(
        self,
        text: str,
        runs: RunTable,
        encoding: Encoding,
        owners: TokenOwners,
        roles: Sequence[str],
        *,
        template: str,
        has_tools: bool,
        has_generation_prompt: bool,
    ) -> SampledTokens:
        """Sampled tokens of one rendered conversation.

        Args:
            text: The rendered text.
            runs: Its runs.
            encoding: Its tokens.
            owners: What the tokens stand for.
            roles: Role of every message.
            template: The template that printed it.
            has_tools: It was rendered with tool definitions.
            has_generation_prompt: It ends with the opener of the next answer.
        """
        view = _View(
            text,
            runs,
            encoding,
            owners,
            np.isin(encoding.token_ids, self._control),
            np.isin(encoding.token_ids, self._eos),
            has_generation_prompt,
        )
        sampled = SampledTokens(np.zeros(len(encoding.token_ids), np.int8), {}, {}, {})
        prompts = self.prompts(template, has_tools=has_tools)
        for i, role in enumerate(roles):
            if role == "assistant":
                _mark_message(view, i, prompts, sampled)
        return sampled

    def prompts(self, template: str, *, has_tools: bool) -> Prompts:
        """What the template prints before an answer."""
        key = (template, has_tools)
        if key not in self._prompts:
            self._prompts[key] = find_prompts(self._tokenizer, template, self._variables, has_tools=has_tools)
        return self._prompts[key]


class _Turn(NamedTuple):
    """Where the text of one assistant message lies.

    `start` and `stop` bound its characters with the template text around that nobody owns, `own_start` and
    `own_stop` those it wrote itself; from `foreign` on there is text of other messages.
    """

    start: int
    stop: int
    own_start: int
    own_stop: int
    foreign: int


def _find_turn(runs: RunTable, message: int) -> _Turn | None:
    own = np.flatnonzero(runs.writer == message)
    if not len(own):
        return None
    first, last = int(own[0]), int(own[-1])
    low, high = first, last
    while low > 0 and runs.writer[low - 1] == NO_MESSAGE:
        low -= 1
    while high + 1 < len(runs.writer) and runs.writer[high + 1] == NO_MESSAGE:
        high += 1
    stop = int(runs.stops[high])
    writer, input_of = runs.writer[first : high + 1], runs.input_of[first : high + 1]
    foreign = ((writer != NO_MESSAGE) & (writer != message)) | (
        (input_of != NO_MESSAGE) & (input_of != message)
    )
    where = np.flatnonzero(foreign)
    return _Turn(
        start=int(runs.starts[low]),
        stop=stop,
        own_start=int(runs.starts[first]),
        own_stop=int(runs.stops[last]),
        foreign=int(runs.starts[first + where[0]]) if len(where) else stop,
    )


class _Header(NamedTuple):
    """How much of a turn the generation prompt supplied: `n_tokens` of it, up to the character `stop`.

    `is_whole` says that all of the prompt's text is there, perhaps in other tokens.
    """

    n_tokens: int
    is_whole: bool
    stop: int


def _match_header(view: _View, turn: _Turn, tokens: NDArray[np.int64], prompts: Prompts) -> _Header:
    """Longest common token prefix of the turn with any generation prompt.

    It may begin behind other template text that opens the turn, such as BOS or a default system prompt; the
    first place with a whole prompt counts.
    """
    if not prompts.has_header:
        return _Header(0, True, turn.own_start)
    starts, stops, ids = view.encoding.starts, view.encoding.stops, view.encoding.token_ids
    best, n_best = _Header(0, False, turn.start), 0
    for opening in _openings(view, turn, tokens, prompts.after):
        candidates = tokens[opening:]
        base = max(int(starts[candidates[0]]), turn.start)
        for prompt in prompts.after:
            n = _common_prefix(ids[candidates], prompt.token_ids)
            whole = n == len(prompt.token_ids)
            if not whole:  # a partial match never takes text of a message
                inputs = np.flatnonzero(view.owners.has_input[candidates[:n]])
                n = int(inputs[0]) if len(inputs) else n
            stop = int(stops[candidates[n - 1]]) if n else base
            if not whole and view.text.startswith(prompt.text, base, turn.stop):
                whole, stop = True, base + len(prompt.text)
            if n > n_best or (n == n_best == 0 and whole and not best.is_whole):
                best, n_best = _Header(n, whole, stop), n
        if n_best and best.is_whole:
            break
    return best


def _openings(
    view: _View, turn: _Turn, tokens: NDArray[np.int64], prompts: list[GenerationPrompt]
) -> list[int]:
    """Numbers of tokens of the turn that may precede its header."""
    inputs = np.flatnonzero(view.owners.has_input[tokens])
    before_input = view.encoding.token_ids[tokens[: inputs[0]] if len(inputs) else tokens]
    first_ids = [prompt.token_ids[0] for prompt in prompts if len(prompt.token_ids)]
    openings = {0, *np.flatnonzero(np.isin(before_input, first_ids)).tolist()}
    if view.encoding.starts[tokens[0]] < turn.start and len(tokens) > 1:
        openings.add(1)  # the first token straddles the turn's left edge
    return sorted(openings)


def _common_prefix(left: NDArray[np.int32], right: NDArray[np.int32]) -> int:
    n = min(len(left), len(right))
    differing = np.flatnonzero(left[:n] != right[:n])
    return int(differing[0]) if len(differing) else n


def _mark_message(view: _View, message: int, prompts: Prompts, sampled: SampledTokens) -> None:
    turn = _find_turn(view.runs, message)
    if turn is None:
        sampled.unknown[message] = NOT_RENDERED
        return
    starts, stops = view.encoding.starts, view.encoding.stops
    low = int(np.searchsorted(stops, turn.start, side="right"))
    high = int(np.searchsorted(starts, turn.stop, side="left"))
    tokens = np.arange(low, high)
    tokens = tokens[stops[tokens] > starts[tokens]]
    if not len(tokens):
        sampled.unknown[message] = NOTHING_TOKENIZED
        return
    header = _match_header(view, turn, tokens, prompts)
    behind_header = tokens[stops[tokens] > header.stop]
    begin = int(behind_header[0]) if len(behind_header) else int(tokens[-1]) + 1
    end, stop_token, reason = _find_end(view, turn, tokens, begin)
    flags: list[str] = []
    if header.n_tokens and not header.is_whole:
        flags.append(MessageFlag.PROMPT_DIFFERS)
    if reason is None and stop_token is None:
        flags.append(MessageFlag.NO_STOP_RENDERED)
    printed = (
        k for k in range(begin, end + 1) if low <= k < high and view.text[starts[k] : stops[k]].strip()
    )
    first = next(printed, None)
    opens_with_template = first is not None and first != stop_token and not view.owners.has_input[first]
    if header.n_tokens == 0 and opens_with_template and prompts.has_header:
        supplied = header.is_whole and any(len(prompt.token_ids) for prompt in prompts.after)
        reason = reason if supplied else NO_PROMPT
    if stop_token is not None and _continues_behind(view, turn, message):
        reason = INPUT_BEHIND_RESULTS
    if reason is not None:
        sampled.unknown[message] = reason
        sampled.mask[view.owners.message_indices == message] = -1
        return
    if begin < len(starts) and starts[begin] < header.stop:
        flags.append(MessageFlag.HEADER_STRADDLED)
        begin += 1
    sampled.answers[message] = Answer(int(tokens[0]), begin, max(begin, end + 1), stop_token is not None)
    covered = np.arange(begin, end + 1)
    sampled.mask[covered[stops[covered] > starts[covered]]] = 1
    if flags:
        sampled.flags[message] = flags


def _find_end(
    view: _View, turn: _Turn, tokens: NDArray[np.int64], begin: int
) -> tuple[int, int | None, str | None]:
    """Last sampled token, the stop token if one was printed, and why it cannot be told."""
    starts = view.encoding.starts
    body = tokens[(tokens >= begin) & (starts[tokens] < turn.foreign)]
    has_input = view.owners.has_input[body]
    inner = body[has_input]
    behind = body > inner[-1] if len(inner) else np.ones(len(body), bool)
    interrupted = turn.foreign < turn.stop
    stop: int | None = None
    reason: str | None = None
    eos = body[~has_input & view.is_eos[body] & (behind | interrupted)]
    tail = body[behind]
    control = tail[view.is_control[tail] & (starts[tail] < turn.own_stop)]
    if not len(control) and not view.has_generation_prompt:
        control = tail[view.is_control[tail] & ~view.owners.has_input[tail]][:1]
    following = _first_token_from(view, turn.stop)
    if len(eos):
        stop = int(eos[0])
    elif interrupted:
        reason = TOOL_RESULTS_INSIDE
    elif not len(control) and following is not None and view.is_eos[following]:
        stop = following
    elif len(control):
        stop = int(control[-1])
    own = body[starts[body] < turn.own_stop]
    end = stop if stop is not None else int(own[-1]) if len(own) else begin - 1
    return end, stop, reason


def _first_token_from(view: _View, character: int) -> int | None:
    """First token that starts at or behind `character` and stands for text."""
    starts, stops = view.encoding.starts, view.encoding.stops
    k = int(np.searchsorted(starts, character, side="left"))
    while k < len(starts) and stops[k] <= starts[k]:
        k += 1
    return k if k < len(starts) else None


def _continues_behind(view: _View, turn: _Turn, message: int) -> bool:
    """Whether text of the message itself lies behind text of other messages in its turn."""
    if turn.foreign >= turn.stop:
        return False
    mine = np.flatnonzero((view.runs.input_of == message) & (view.runs.starts < turn.stop))
    if not len(mine):
        return False
    last = int(mine[-1])
    k = int(np.searchsorted(view.encoding.starts, view.runs.stops[last], side="left")) - 1
    return bool(view.encoding.stops[k] > view.runs.starts[last] and view.encoding.starts[k] > turn.foreign)
