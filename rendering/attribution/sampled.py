"""Which tokens a model generated, for any chat template.

Nothing here knows a model family. The template itself says what it puts before an answer (its generation
prompt) and the tokenizer says which ids end a turn; what lies between was sampled. `{% generation %}` tags,
where a template has them, decide instead.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tokscore.dataset.tokens import MessageFlag
from tokscore.rendering.attribution.headers import (
    FLAG,
    UNCONFIRMED,
    Answer,
    Header,
    View,
    find_header,
    first_flagged,
    is_confirmed,
    last_flagged,
)
from tokscore.rendering.attribution.owners import RunTable, TokenOwners
from tokscore.rendering.attribution.prompts import Prompts, find_prompts
from tokscore.rendering.attribution.tokenizer import ChatTokenizer, Encoding
from tokscore.rendering.attribution.turns import Turn, Turns
from tokscore.rendering.templates.render import has_generation_tags

if TYPE_CHECKING:
    from numpy.typing import NDArray

NOT_RENDERED = "the template prints nothing of it"
NOTHING_TOKENIZED = "no token lies in its text"
TOOL_RESULTS_INSIDE = "tool results lie inside the turn, and no end-of-turn token before them"
INPUT_BEHIND_RESULTS = "its own text goes on behind the tool results in the same turn"
NO_PROMPT = "its turn opens with template text that no generation prompt supplies"


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
        view = View(
            text,
            ids,
            encoding.starts[printed].data,
            encoding.stops[printed].data,
            has_input.tobytes(),
            self._is_special[ids].tobytes(),
            is_eos.tobytes(),
            (is_eos & ~has_input).tobytes(),
            has_generation_prompt,
            not has_generation_tags(template),
        )
        sampled = SampledTokens(np.zeros(len(ids), np.int8), {}, {}, {})
        prompts, turns = self.prompts(template, has_tools=has_tools), Turns(runs)
        before = ""
        for i, role in enumerate(roles):
            if role == "assistant":
                _mark_message(view, i, turns.find(i), prompts, before, sampled)
            before = role
        if not isinstance(printed, slice):
            sampled = _spread(sampled, printed, len(is_printed))
        if sampled.unknown:
            # The stop of an answer may be text of the one before it, which it goes on.
            is_unknown = np.isin(owners.message_indices, list(sampled.unknown)) & (sampled.mask != 1)
            sampled.mask[is_unknown] = -1
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


def _mark_message(
    view: View, message: int, turn: Turn | None, prompts: Prompts, before: str, sampled: SampledTokens
) -> None:
    if turn is None:
        sampled.unknown[message] = NOT_RENDERED
        return
    starts, stops = view.starts, view.stops
    low = bisect_right(stops, turn.start)
    high = bisect_left(starts, turn.stop)
    if low >= high:
        sampled.unknown[message] = NOTHING_TOKENIZED
        return
    header = find_header(view, turn, low, high, prompts, before) or _going_on(
        view, turn, sampled.answers.get(message - 1)
    )
    if header is None:
        sampled.unknown[message] = NO_PROMPT
        return
    begin = min(bisect_right(stops, header.stop), high)
    end, stop_token, reason = _find_end(view, turn, begin, high)
    if stop_token is None:
        end, turn = _without_separator(view, turn, begin, end, prompts.separators)
    if stop_token is not None and _continues_behind(view, turn):
        reason = INPUT_BEHIND_RESULTS
    if reason is not None:
        sampled.unknown[message] = reason
        return
    flags: list[str] = []
    if not header.is_whole:
        flags.append(MessageFlag.PROMPT_DIFFERS)
    if stop_token is None:
        flags.append(MessageFlag.NO_STOP_RENDERED)
    if begin < len(starts) and starts[begin] < header.stop:
        flags.append(MessageFlag.HEADER_STRADDLED)
        begin += 1
    answer = Answer(min(low, begin), begin, max(begin, end), stop_token is not None)
    if view.is_checked and not is_confirmed(view, turn, answer, header, prompts, before):
        sampled.unknown[message] = UNCONFIRMED
        sampled.flags[message] = [MessageFlag.UNCONFIRMED]
        return
    sampled.answers[message] = answer
    sampled.mask[begin:end] = 1
    if flags:
        sampled.flags[message] = flags


def _going_on(view: View, turn: Turn, before: Answer | None) -> Header | None:
    """The place of an answer that the template prints right behind the one before it, in the same turn."""
    if before is None or before.has_stop or turn.body != turn.own_start:
        return None
    if not before.start < before.stop < len(view.starts):
        return None
    start, last = view.starts[before.stop], view.starts[before.stop - 1]
    goes_on = start <= turn.own_start < view.stops[before.stop] and last < turn.own_start
    return Header(start, start, is_whole=True, goes_on=True) if goes_on else None


def _find_end(view: View, turn: Turn, begin: int, high: int) -> tuple[int, int | None, str | None]:
    """One past the last sampled token, the stop token if one was printed, and why it cannot be told."""
    body_stop = max(begin, min(high, bisect_left(view.starts, turn.foreign)))
    own_stop = min(body_stop, bisect_left(view.starts, turn.own_stop))
    tail = last_flagged(view.has_input, begin, body_stop) + 1
    interrupted = turn.foreign < turn.stop
    stop: int | None = None
    reason: str | None = None
    eos = first_flagged(view.is_template_eos, begin if interrupted else tail, body_stop)
    control = last_flagged(view.is_control, tail, own_stop)
    if control < tail and not view.has_generation_prompt:
        control = first_flagged(view.is_control, tail, body_stop)
    if eos < body_stop:
        stop = eos
    elif interrupted and body_stop < high and view.is_template_eos[body_stop] and body_stop > begin:
        stop = body_stop  # it opens the text of the other message
    elif interrupted:
        reason = TOOL_RESULTS_INSIDE
    elif high < len(view.starts) and view.is_template_eos[high]:
        stop = high  # a control token before it ends nothing
    elif tail <= control < body_stop:
        stop = control
    if stop is not None:
        return stop + 1, stop, reason
    if own_stop > begin and view.stops[own_stop - 1] > turn.own_stop:
        own_stop -= 1  # a token that holds the start of the next message too
    return max(begin, own_stop), None, reason


def _without_separator(
    view: View, turn: Turn, begin: int, end: int, separators: Sequence[str]
) -> tuple[int, Turn]:
    """One past the last sampled token of an answer without a stop, and its turn, before what separates it."""
    if turn.own_stop == len(view.text) and not view.has_generation_prompt:
        return end, turn
    for separator in separators:
        stop = turn.own_stop - len(separator)
        first = bisect_left(view.starts, stop)
        if (
            view.text.endswith(separator, turn.own_start, turn.own_stop)
            and FLAG not in view.has_input[first:end]
        ):
            return max(begin, min(end, first)), turn._replace(own_stop=stop)
    return end, turn


def _continues_behind(view: View, turn: Turn) -> bool:
    """Whether text of the message itself lies behind text of other messages in its turn."""
    if turn.last_input is None:
        return False
    start, stop = turn.last_input
    k = bisect_left(view.starts, stop) - 1
    return view.stops[k] > start and view.starts[k] > turn.foreign
