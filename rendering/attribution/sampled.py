"""Which tokens a model generated, for any chat template.

Nothing here knows a model family. The template itself says what it puts before an answer (its generation
prompt) and the tokenizer says which ids end a turn; what lies between was sampled. `{% generation %}` tags,
where a template has them, decide instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tokscore.dataset.tokens import MessageFlag
from tokscore.rendering.attribution.owners import RunTable, TokenOwners
from tokscore.rendering.attribution.prompts import GenerationPrompt, Prompts, find_prompts
from tokscore.rendering.attribution.tokenizer import ChatTokenizer, Encoding
from tokscore.rendering.attribution.turns import Turn, Turns

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
        self._is_special = tokenizer.flags(tokenizer.special_ids)
        self._is_eos = tokenizer.flags(tokenizer.eos_ids)
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
            has_generation_prompt: It ends with the generation prompt.
        """
        is_printed = encoding.stops > encoding.starts
        printed = slice(None) if is_printed.all() else np.flatnonzero(is_printed)
        ids, has_input = encoding.token_ids[printed], owners.has_input[printed]
        is_eos = self._is_eos[ids]
        view = _View(
            text,
            ids,
            encoding.starts[printed],
            encoding.stops[printed],
            has_input,
            self._is_special[ids],
            is_eos,
            is_eos & ~has_input,
            has_generation_prompt,
        )
        sampled = SampledTokens(np.zeros(len(ids), np.int8), {}, {}, {})
        prompts, turns = self.prompts(template, has_tools=has_tools), Turns(runs)
        for i, role in enumerate(roles):
            if role == "assistant":
                _mark_message(view, i, turns.find(i), prompts, sampled)
        if not isinstance(printed, slice):
            sampled = _spread(sampled, printed, len(is_printed))
        if sampled.unknown:
            sampled.mask[np.isin(owners.message_indices, list(sampled.unknown))] = -1
        return sampled

    def prompts(self, template: str, *, has_tools: bool) -> Prompts:
        """The template's text before an answer."""
        key = (template, has_tools)
        if key not in self._prompts:
            self._prompts[key] = find_prompts(self._tokenizer, template, self._variables, has_tools=has_tools)
        return self._prompts[key]


def _spread(sampled: SampledTokens, printed: NDArray[np.int64], n_tokens: int) -> SampledTokens:
    """The same among all tokens."""
    mask = np.zeros(n_tokens, np.int8)
    mask[printed] = sampled.mask
    at = [*printed.tolist(), n_tokens]
    answers = {
        message: Answer(at[answer.turn_start], at[answer.start], at[answer.stop - 1] + 1, answer.has_stop)
        if answer.stop > answer.start
        else Answer(at[answer.turn_start], at[answer.start], at[answer.start], answer.has_stop)
        for message, answer in sampled.answers.items()
    }
    return sampled._replace(mask=mask, answers=answers)


class _Header(NamedTuple):
    """How much of a turn the generation prompt supplied: `n_tokens` of it, up to the character `stop`.

    `is_whole` says that all of the prompt's text is there, perhaps in other tokens.
    """

    n_tokens: int
    is_whole: bool
    stop: int


def _match_header(view: _View, turn: Turn, low: int, high: int, prompts: Prompts) -> _Header:
    """Longest common token prefix of the tokens `low` to `high` of a turn with any generation prompt.

    It may begin behind other template text that opens the turn, such as BOS or a default system prompt; the
    first place with a whole prompt counts.
    """
    if not prompts.has_header:
        return _Header(0, True, turn.own_start)
    longest = max((len(prompt.token_ids) for prompt in prompts.after), default=0)
    best, n_best = _Header(0, False, turn.start), 0
    for opening in _openings(view, turn, low, high, prompts.after):
        base = max(int(view.starts[opening]), turn.start)
        ids = view.token_ids[opening : min(opening + longest, high)].tolist()
        for prompt in prompts.after:
            n = _common_prefix(ids, prompt.token_ids)
            whole = n == len(prompt.token_ids)
            if not whole:  # a partial match never takes text of a message
                n = _first(view.has_input, opening, opening + n) - opening
            stop = int(view.stops[opening + n - 1]) if n else base
            if not whole and view.text.startswith(prompt.text, base, turn.stop):
                whole, stop = True, base + len(prompt.text)
            if n > n_best or (n == n_best == 0 and whole and not best.is_whole):
                best, n_best = _Header(n, whole, stop), n
        if n_best and best.is_whole:
            break
    return best


def _openings(
    view: _View, turn: Turn, low: int, high: int, prompts: Sequence[GenerationPrompt]
) -> Iterator[int]:
    """Tokens of the turn at which its header may begin, in order."""
    yield low
    first_ids = {prompt.token_ids[0] for prompt in prompts if prompt.token_ids}
    before_input = view.token_ids[low : _first(view.has_input, low, high)].tolist()
    openings = {low + i for i, token_id in enumerate(before_input) if token_id in first_ids}
    if view.starts[low] < turn.start and high - low > 1:
        openings.add(low + 1)  # the first token straddles the turn's left edge
    yield from sorted(openings - {low})


def _common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    pairs = enumerate(zip(left, right, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(left), len(right)))


def _first(flags: NDArray[np.bool_], start: int, stop: int) -> int:
    """First flagged position from `start` on, `stop` without one."""
    if start >= stop:
        return stop
    k = start + int(flags[start:stop].argmax())
    return k if flags[k] else stop


def _last(flags: NDArray[np.bool_], start: int, stop: int) -> int:
    """Last flagged position before `stop`, `start - 1` without one."""
    if start >= stop:
        return start - 1
    k = stop - 1 - int(flags[start:stop][::-1].argmax())
    return k if flags[k] else start - 1


def _mark_message(
    view: _View, message: int, turn: Turn | None, prompts: Prompts, sampled: SampledTokens
) -> None:
    if turn is None:
        sampled.unknown[message] = NOT_RENDERED
        return
    starts, stops = view.starts, view.stops
    low = int(stops.searchsorted(turn.start, "right"))
    high = int(starts.searchsorted(turn.stop))
    if low >= high:
        sampled.unknown[message] = NOTHING_TOKENIZED
        return
    header = _match_header(view, turn, low, high, prompts)
    begin = min(max(low, int(stops.searchsorted(header.stop, "right"))), high)
    end, stop_token, reason = _find_end(view, turn, begin, high)
    flags: list[str] = []
    if header.n_tokens and not header.is_whole:
        flags.append(MessageFlag.PROMPT_DIFFERS)
    if reason is None and stop_token is None:
        flags.append(MessageFlag.NO_STOP_RENDERED)
    printed = (k for k in range(begin, min(end, high)) if view.text[starts[k] : stops[k]].strip())
    first = next(printed, None)
    opens_with_template = first is not None and first != stop_token and not view.has_input[first]
    if header.n_tokens == 0 and opens_with_template and prompts.has_header:
        supplied = header.is_whole and any(prompt.token_ids for prompt in prompts.after)
        reason = reason if supplied else NO_PROMPT
    if stop_token is not None and _continues_behind(view, turn):
        reason = INPUT_BEHIND_RESULTS
    if reason is not None:
        sampled.unknown[message] = reason
        return
    if begin < len(starts) and starts[begin] < header.stop:
        flags.append(MessageFlag.HEADER_STRADDLED)
        begin += 1
    sampled.answers[message] = Answer(low, begin, max(begin, end), stop_token is not None)
    sampled.mask[begin:end] = 1
    if flags:
        sampled.flags[message] = flags


def _find_end(view: _View, turn: Turn, begin: int, high: int) -> tuple[int, int | None, str | None]:
    """One past the last sampled token, the stop token if one was printed, and why it cannot be told."""
    body_stop = max(begin, min(high, int(view.starts.searchsorted(turn.foreign))))
    own_stop = min(body_stop, int(view.starts.searchsorted(turn.own_stop)))
    tail = _last(view.has_input, begin, body_stop) + 1
    interrupted = turn.foreign < turn.stop
    stop: int | None = None
    reason: str | None = None
    eos = _first(view.is_template_eos, begin if interrupted else tail, body_stop)
    control = _last(view.is_control, tail, own_stop)
    if control < tail and not view.has_generation_prompt:
        control = _first(view.is_control, tail, body_stop)
    if eos < body_stop:
        stop = eos
    elif interrupted:
        reason = TOOL_RESULTS_INSIDE
    elif tail <= control < body_stop:
        stop = control
    elif high < len(view.starts) and view.is_eos[high]:
        stop = high
    end = max(begin, own_stop) if stop is None else stop + 1
    return end, stop, reason


def _continues_behind(view: _View, turn: Turn) -> bool:
    """Whether text of the message itself lies behind text of other messages in its turn."""
    if turn.last_input is None:
        return False
    start, stop = turn.last_input
    k = int(view.starts.searchsorted(stop)) - 1
    return bool(view.stops[k] > start and view.starts[k] > turn.foreign)
