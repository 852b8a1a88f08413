"""Conversations that grow: earlier token ids are kept as they are, new turns are attributed behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tokscore.dataset.errors import ConversationError, UsageError
from tokscore.dataset.tokens import NO_MESSAGE, MessageFacts, MessageFlag, RenderedTokens
from tokscore.rendering.attribution.renderer import Renderer
from tokscore.rendering.attribution.tokenizer import ChatTokenizer
from tokscore.rendering.conversations.conversation import Conversation, as_conversation, check_message
from tokscore.rendering.incremental.packing import joined, merged_sources, shifted

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NOWHERE = -1
_N_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Continuation:
    """A conversation that has grown.

    Attributes:
        conversation: With the new messages.
        tokens: The prior ids, unchanged, and the new ones. Message indices are those of `conversation`.
        n_prior_tokens: How many ids were there before.
        n_prior_messages: How many messages were there before.
    """

    conversation: Conversation
    tokens: RenderedTokens
    n_prior_tokens: int
    n_prior_messages: int

    @property
    def new_tokens(self) -> RenderedTokens:
        """The appended tokens; message indices are those of the conversation."""
        return self.tokens[self.n_prior_tokens :]

    def relative(self) -> RenderedTokens:
        """The appended tokens, with the first new message as message 0.

        Tokens that still belong to an earlier message (the newline behind its stop) have message index -1.
        """
        new, n = self.new_tokens, self.n_prior_messages
        indices = np.where(new.message_indices >= n, new.message_indices - np.int32(n), np.int32(NO_MESSAGE))
        return replace(new, message_indices=indices, messages=new.messages[n:])


class NotContinued(NamedTuple):
    """New messages cannot follow the prior ids.

    Attributes:
        reason: What the template does instead of appending, or what does not fit.
    """

    reason: str


def continue_with(
    renderer: Renderer,
    conversation: Conversation | Mapping[str, Any],  # Any: JSON values
    tokens: RenderedTokens,
    new_messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool = True,
) -> Continuation | NotContinued:
    """The prior ids, then the new messages and the generation prompt as the template prints them.

    The prior ids are never changed. Where they are the template's own, the result equals one rendering of
    the whole conversation. Where an engine sampled some of them (`add_answer`), those stay, and what follows
    is what the template puts behind that answer; a stop that the engine did not sample is added as not
    sampled.

    Args:
        renderer: The template and its settings.
        conversation: The messages behind `tokens`, checked or as a record of the format `openai`.
        tokens: The prior: a rendering with or without generation prompt, or an earlier continuation.
        new_messages: What follows. Without any, only the generation prompt is appended.
        add_generation_prompt: Append the generation prompt.

    Returns:
        A `NotContinued` where appending would give other ids than the template: it prints earlier messages
        otherwise once new ones follow (Qwen3 drops their reasoning), tokens merge across the boundary, or
        the prior ends where the template does not.

    Raises:
        ConversationError: The template refuses the longer conversation.
        UsageError: `tokens` and `conversation` have different messages.
    """
    conversation = as_conversation(conversation)
    check_messages(conversation, tokens)
    check_new(new_messages)
    longer = replace(conversation, messages=[*conversation.messages, *new_messages])
    whole = renderer.with_generation_prompt(add_generation_prompt).render(longer)
    n = len(tokens)
    if np.array_equal(whole.token_ids[:n], tokens.token_ids):
        match = _Match(np.arange(n), n)
    else:
        found = _match_recorded(renderer, conversation, tokens, new_messages, whole)
        if isinstance(found, NotContinued):
            return found
        match = found
    prior = _adopt(tokens, whole, match.counterparts)
    new = replace(whole[match.first_new :], messages=prior.messages)
    if n and _is_recorded(tokens)[-1]:
        # What the engine did not sample of its turn, though a model would have: the rest of its stop.
        unsampled = _is_recorded(new) | np.minimum.accumulate(new.sampled_mask == 1)
        new = replace(new, sampled_mask=np.where(unsampled, np.int8(0), new.sampled_mask))
    return Continuation(longer, append(prior, new), n, len(conversation.messages))


def check_new(messages: Sequence[Mapping[str, Any]]) -> None:  # Any: JSON values
    """Refuse what are no messages.

    Raises:
        UsageError: There is no list of them.
        ConversationError: One of them is none.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise UsageError(f"the new messages are {type(messages).__name__}; expected a list of messages.")
    for i, message in enumerate(messages):
        check_message(message, f"$.new_messages[{i}]")


def check_messages(conversation: Conversation, tokens: RenderedTokens) -> None:
    """Refuse tokens of other messages.

    Raises:
        UsageError: The roles differ.
    """
    roles = tuple(str(message["role"]) for message in conversation.messages)
    if roles != tokens.message_roles:
        raise UsageError(
            f"the tokens are of messages {', '.join(tokens.message_roles) or 'none'}, the conversation has "
            f"{', '.join(roles) or 'none'}; expected the conversation that was rendered."
        )


class _Match(NamedTuple):
    """Prior tokens found in the rendering of the longer conversation.

    Attributes:
        counterparts: The same token there, `_NOWHERE` for what only the prior has; shape [prior tokens].
        first_new: First token there that is appended.
    """

    counterparts: NDArray[np.int64]
    first_new: int


def _match_recorded(
    renderer: Renderer,
    conversation: Conversation,
    tokens: RenderedTokens,
    new_messages: Sequence[Mapping[str, Any]],
    whole: RenderedTokens,
) -> _Match | NotContinued:
    """Match by the tokens that no model generated: they must be the same, sampled ones need not be."""
    tokenizer = renderer.tokenizer
    try:
        alone = renderer.with_generation_prompt(True).render(conversation)
        has_prompt = _ends_alike(tokens, alone)
        if not has_prompt:
            alone = renderer.with_generation_prompt(False).render(conversation)
    except ConversationError as error:
        return NotContinued(f"the earlier messages alone cannot be rendered to compare: {error.reason}")
    if has_prompt and new_messages and new_messages[0]["role"] != "assistant":
        return NotContinued(
            f"the prior ends with a generation prompt, but the first new message is of role "
            f"{new_messages[0]['role']}"
        )
    given = np.flatnonzero(~_in_answer(tokens, tokens))
    printed = np.flatnonzero(~_in_answer(whole, tokens))
    fits = np.array_equal(tokens.token_ids[given], whole.token_ids[printed[: len(given)]])
    end = _answer_end(tokenizer, tokens, whole, given, printed) if fits else _End(len(alone), 0)
    if isinstance(end, NotContinued):
        return end
    n_compared = min(end.first_new, len(alone))
    if not np.array_equal(alone.token_ids[:n_compared], whole.token_ids[:n_compared]):
        return NotContinued(_why_changed(tokenizer, alone, whole))
    if not fits:
        difference = _difference(tokenizer, tokens.token_ids[given], whole.token_ids[printed])
        return NotContinued(
            f"the prior holds {difference.before!r} where the template prints {difference.after!r}"
        )
    counterparts = np.full(len(tokens), _NOWHERE)
    counterparts[given] = printed[: len(given)]
    counterparts[len(tokens) - end.n_closing :] = np.arange(end.first_new - end.n_closing, end.first_new)
    return _Match(counterparts, end.first_new)


def _in_answer(tokens: RenderedTokens, prior: RenderedTokens) -> NDArray[np.bool_]:
    """Tokens of the answers that are recorded in `prior`, from the first sampled one of each on."""
    first = np.full(len(tokens.messages) + 1, len(tokens))
    sampled = np.flatnonzero(tokens.sampled_mask == 1)[::-1]
    first[tokens.message_indices[sampled]] = sampled
    is_recorded = np.zeros(len(tokens.messages) + 1, bool)  # the last is that of no message
    is_recorded[: len(prior.messages)] = [MessageFlag.RECORDED in message.flags for message in prior.messages]
    owners = tokens.message_indices
    return is_recorded[owners] & (np.arange(len(tokens)) >= first[owners])


class _End(NamedTuple):
    """Where the prior ends in the rendering of the longer conversation.

    Attributes:
        first_new: First token there behind the prior.
        n_closing: So many tokens before it, the stop and what follows, end the prior too.
    """

    first_new: int
    n_closing: int


def unowned_tail(tokens: RenderedTokens) -> NDArray[np.int32]:
    """The ids behind the last token of a message."""
    owned = np.flatnonzero(tokens.message_indices != NO_MESSAGE)
    return tokens.token_ids[owned[-1] + 1 :] if len(owned) else tokens.token_ids


def _ends_alike(tokens: RenderedTokens, prompted: RenderedTokens) -> bool:
    prompt = unowned_tail(prompted)
    return len(prompt) > 0 and np.array_equal(unowned_tail(tokens), prompt)


def _answer_end(
    tokenizer: ChatTokenizer,
    tokens: RenderedTokens,
    whole: RenderedTokens,
    given: NDArray[np.int64],
    printed: NDArray[np.int64],
) -> _End | NotContinued:
    """Where the prior ends in `whole`, though it may lack a part of its last answer's stop.

    `given` and `printed` are the tokens outside answers, of the prior and of `whole`.
    """
    n = len(given)
    begin = int(printed[n - 1]) + 1 if n else 0
    if n and given[-1] == len(tokens) - 1:
        return _End(begin, 0)
    stop = int(printed[n]) if len(printed) > n else len(whole)
    if stop < len(whole) and whole.sampled_mask[stop] == 1:  # a stop that opens the next message
        stop += whole.messages[whole.message_indices[stop]].role != "assistant"
    answer = whole.token_ids[begin:stop]
    is_control = np.isin(answer, list(tokenizer.special_ids)) & ~whole.is_content[begin:stop]
    control = np.flatnonzero(is_control)
    closing = answer[control[-1] :] if len(control) else answer[len(answer) :]
    for n_closing in range(len(closing), 0, -1):
        if np.array_equal(tokens.token_ids[-n_closing:], closing[:n_closing]):
            return _End(stop - len(closing) + n_closing, n_closing)
    last = int(tokens.token_ids[-1])
    if last in tokenizer.special_ids | tokenizer.eos_ids:
        ends = repr(tokenizer.hf.decode(closing[:1])) if len(closing) else "no control token"
        return NotContinued(
            f"the prior ends with {tokenizer.hf.decode([last])!r}, "
            f"but the template ends that turn with {ends}"
        )
    return _End(stop - len(closing), 0)


class _Difference(NamedTuple):
    at: int
    before: str
    after: str


def _difference(tokenizer: ChatTokenizer, before: NDArray[np.int32], after: NDArray[np.int32]) -> _Difference:
    """The first ids that differ, and the text from there on."""
    n = min(len(before), len(after))
    differing = np.flatnonzero(before[:n] != after[:n])
    at = int(differing[0]) if len(differing) else n
    shown = [str(tokenizer.hf.decode(ids[at : at + _N_SHOWN])) for ids in (before, after)]
    return _Difference(at, *shown)


def _why_changed(tokenizer: ChatTokenizer, alone: RenderedTokens, whole: RenderedTokens) -> str:
    """Why the rendering of a longer conversation does not begin with that of the shorter one."""
    if whole.text is not None and alone.text is not None and whole.text.startswith(alone.text):
        return "tokens at the end of the earlier messages merge with what follows"
    difference = _difference(tokenizer, alone.token_ids, whole.token_ids)
    return (
        "the template prints earlier messages otherwise once the new ones follow: "
        f"from token {difference.at}, {difference.before!r} becomes {difference.after!r}"
    )


def _is_recorded(tokens: RenderedTokens) -> NDArray[np.bool_]:
    """Tokens of messages whose ids came from an engine."""
    recorded = np.array([MessageFlag.RECORDED in message.flags for message in tokens.messages] + [False])
    return recorded[tokens.message_indices]  # -1 picks the last


def _adopt(own: RenderedTokens, whole: RenderedTokens, counterparts: NDArray[np.int64]) -> RenderedTokens:
    """The ids of `own` with the attribution of their counterparts in `whole`.

    Tokens without one keep theirs, and recorded messages what is known of them. With recorded messages it is
    known of all tokens which were sampled: a stop that was added is not, though the rule would say so.
    """
    found = counterparts >= 0
    at = np.where(found, counterparts, 0)
    sources, (own_codes, whole_codes) = merged_sources([own, whole])
    facts = [
        _known(own.messages[i], message) if i < len(own.messages) else message
        for i, message in enumerate(whole.messages)
    ]
    rendered = found & ~_is_recorded(own).any()
    return replace(
        own,
        message_indices=np.where(found, whole.message_indices[at], own.message_indices),
        sampled_mask=np.where(rendered, whole.sampled_mask[at], own.sampled_mask),
        is_content=np.where(found, whole.is_content[at], own.is_content),
        source_codes=np.where(found, whole_codes[at], own_codes),
        sources=sources,
        messages=tuple(facts),
        n_untracked_characters=whole.n_untracked_characters,
    )


def _known(prior: MessageFacts, rendered: MessageFacts) -> MessageFacts:
    return prior if MessageFlag.RECORDED in prior.flags else rendered


def append(prior: RenderedTokens, new: RenderedTokens) -> RenderedTokens:
    """Both, with the text of the prior carried on by that of the new tokens."""
    if prior.text is None or new.text is None or new.char_starts is None:
        return joined([prior, new])
    begin = int(new.char_starts[0]) if len(new) else len(new.text)
    both = joined([prior, shifted(new, n_characters=len(prior.text) - begin)])
    return replace(both, text=prior.text + new.text[begin:])
