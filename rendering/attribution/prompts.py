"""How a chat template opens an answer, found out by asking it.

The generation prompt is what a rendering with it has that the one without it has not, wherever the template
prints it. Where both are equal it is the text at the end that no message owns: some templates print the
opener of an answer either way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tokscore.dataset.tokens import NO_MESSAGE
from tokscore.rendering.attribution.owners import run_table
from tokscore.rendering.attribution.separators import common_prefix, find_separators
from tokscore.rendering.attribution.tokenizer import ChatTokenizer
from tokscore.rendering.templates.probes import (
    ANSWER,
    LATER,
    TOOL,
    USER,
    Messages,
    probe,
    tool_rounds,
    with_parts,
)
from tokscore.rendering.templates.render import RenderedText

_NOTHING = ""  # in place of the role of the message before an answer that opens the conversation


class GenerationPrompt(NamedTuple):
    """The text that a template prints before an answer.

    Attributes:
        token_ids: Its tokens.
        text: The same as characters.
        is_asked_for: It is only printed where a generation prompt is asked for.
        n_blank: Where it is empty, so many characters of white space come between it and an answer.
    """

    token_ids: tuple[int, ...]
    text: str
    is_asked_for: bool
    n_blank: int = 0


class Prompts:
    """How a template opens an answer.

    Attributes:
        after: What it prints behind a message of each role; none where it takes no such probe. It prints
            nothing only where an answer there opens with its own text too. The role before the first
            message is "".
        openers: What it prints before the text of a user and of an assistant, behind other messages.
        every: All prompts that are not empty, the longest first.
        texts: Text of each.
        n_role_tokens: So many tokens of a prompt open the turn of a user too.
        separators: What it prints behind an answer only where a message follows, the longest first.
        vary: Later turns of the same role have other prompts, such as one with a number.
    """

    def __init__(
        self,
        after: dict[str, tuple[GenerationPrompt, ...]],
        openers: dict[str, str],
        user_opener: Sequence[int],
        separators: tuple[str, ...] = (),
        *,
        vary: bool = False,
    ) -> None:
        """Prepare the lists.

        Args:
            after: As above.
            openers: As above.
            user_opener: Tokens of the user's opener.
            separators: As above.
            vary: As above.
        """
        self.vary = vary
        self.after = after
        self.openers = openers
        self.separators = separators
        found = {prompt for prompts in after.values() for prompt in prompts if prompt.text}
        self.every = tuple(sorted(found, key=lambda prompt: (-len(prompt.text), prompt.text)))
        self.texts = tuple(dict.fromkeys(prompt.text for prompt in self.every))
        common = (common_prefix(user_opener, prompt.token_ids) for prompt in self.every)
        self.n_role_tokens = max(common, default=0)
        self._before: dict[str, tuple[GenerationPrompt, ...]] = {}

    def before(self, role: str) -> tuple[GenerationPrompt, ...]:
        """All that are not empty, those behind a message of `role` first."""
        if role not in self._before:
            own = [prompt for prompt in self.after.get(role, ()) if prompt.text]
            self._before[role] = tuple(dict.fromkeys([*own, *self.every]))
        return self._before[role]

    def empty_after(self, role: str) -> GenerationPrompt | None:
        """The empty prompt, where the template prints nothing between a message of `role` and an answer."""
        if role not in self.after and not self.every:
            role = "user"
        return next((prompt for prompt in self.after.get(role, ()) if not prompt.text), None)


def find_prompts(
    tokenizer: ChatTokenizer, template: str, variables: Mapping[str, Any], *, has_tools: bool
) -> Prompts:
    """The text that `template` prints before an answer.

    Args:
        tokenizer: Turns it into ids.
        template: Jinja source.
        variables: Special tokens and template kwargs, as in the conversations.
        has_tools: Ask with a tool definition.
    """
    asked: dict[str, Iterable[Messages]] = {
        "user": [[USER]],
        "tool": tool_rounds(),
        "assistant": [[USER, ANSWER]],
        "system": [[{**USER, "role": "system"}]],
        _NOTHING: [[]],
    }
    after = {}
    for role, conversations in asked.items():
        found = _ask(tokenizer, template, variables, conversations, has_tools=has_tools)
        if found is not None:
            after[role] = found
    first = after.get("user", ())
    later = (first and _ask(tokenizer, template, variables, [LATER], has_tools=has_tools)) or first
    vary = set(first) != set(later)
    if vary:
        after["user"] = tuple(dict.fromkeys([*first, *later]))
    openers = _openers(template, variables)
    user_opener = tokenizer.encode(openers.get("user", "")).token_ids.tolist()
    return Prompts(after, openers, user_opener, find_separators(template, variables), vary=vary)


def _ask(
    tokenizer: ChatTokenizer,
    template: str,
    variables: Mapping[str, Any],
    conversations: Iterable[Messages],
    *,
    has_tools: bool,
) -> tuple[GenerationPrompt, ...] | None:
    """The prompts behind the first of the conversations that the template prints to the end, or takes."""
    tries = list(conversations)
    answers = [[ANSWER]] * len(tries) + [with_parts([ANSWER])] * len(tries)
    taken: tuple[GenerationPrompt, ...] | None = None
    for messages, answer in zip((*tries, *map(with_parts, tries)), answers, strict=True):
        for tools in ([TOOL], None) if has_tools else (None,):
            prompted = probe(template, variables, messages, tools=tools, add_generation_prompt=True)
            if prompted is None or (messages and not prompted.text):
                continue
            is_printed = not messages or any(
                run.origin is not None and run.origin.is_body and run.origin.message == len(messages) - 1
                for run in prompted.runs
            )
            if taken is not None and not is_printed:
                continue
            without = probe(template, variables, messages, tools=tools)
            followed = [
                probe(template, variables, [*messages, each], tools=tools) for each in (*answer, USER)
            ]
            found = _prompts(
                tokenizer,
                prompted,
                None if without is None else without.text,
                _turn_end(prompted.text, followed, len(messages) - 1),
                behind_turn=messages[-1:] != [] and messages[-1]["role"] != "system",
            )
            answered = followed[0]
            taken = tuple(prompt for prompt in found if prompt.text)
            if len(taken) < len(found) and answered is not None:
                taken += _empty_prompt(answered, prompted.text, len(messages))
            if is_printed:
                return taken
    return taken


def _prompts(
    tokenizer: ChatTokenizer, prompted: RenderedText, without: str | None, turn_end: int, *, behind_turn: bool
) -> tuple[GenerationPrompt, ...]:
    """What the text without generation prompt lacks, and the end that no message owns.

    Each with and without the white space that it opens with, which may merge with the text before it.

    Args:
        tokenizer: Turns it into ids.
        prompted: The text with it.
        without: The text without it, None where the template refuses that.
        turn_end: So many characters end with the turn before it.
        behind_turn: Some turn comes before it; else text of no message need not be an opener.
    """
    text = prompted.text
    encoding = tokenizer.encode(text)
    runs = run_table(prompted.runs)
    owned = np.flatnonzero(runs.writer != NO_MESSAGE)
    unowned = int(runs.stops[owned[-1]]) if len(owned) and behind_turn else len(text)
    if without is None or text == without:
        begins = [unowned if text[unowned:].strip() else len(text)]
    else:
        begin = max(common_prefix(text, without), turn_end)
        held_by = np.flatnonzero((encoding.starts < begin) & (encoding.stops > begin))
        if len(held_by) and encoding.token_ids[held_by[0]] in tokenizer.special_ids:
            begin = int(encoding.starts[held_by[0]])  # two control tokens that begin with the same characters
        begins = [begin, unowned] if unowned < begin < len(text) else [begin]
    begins += [begin + len(text[begin:]) - len(text[begin:].lstrip()) for begin in begins]
    found: list[GenerationPrompt] = []
    for begin in sorted(set(begins)):
        if found and begin == len(text):
            break  # of white space alone
        chosen = (encoding.starts >= begin) & (encoding.stops > encoding.starts)
        found.append(
            GenerationPrompt(tuple(encoding.token_ids[chosen].tolist()), text[begin:], text != without)
        )
    return tuple(found)


def _turn_end(prompted: str, followed: Iterable[RenderedText | None], message: int) -> int:
    """Characters up to the end of the turn of the last message, which is no part of the prompt.

    Some templates print its end only where something follows: it is what any message behind it calls for too.
    """
    ends = []
    for printed in followed:
        if printed is not None:
            runs = run_table(printed.runs)
            written = np.flatnonzero(runs.writer == message)
            end = int(runs.stops[written[-1]]) if len(written) else 0
            ends.append(end if prompted.startswith(printed.text[:end]) else 0)
    return min(ends, default=0)


def _empty_prompt(answered: RenderedText, prompted: str, message: int) -> tuple[GenerationPrompt, ...]:
    """An empty prompt, if the answer behind it opens with its own text; none otherwise."""
    runs = run_table(answered.runs)
    written = np.flatnonzero(runs.writer == message)
    if not len(written) or _opener(answered, message).strip():
        return ()
    between = answered.text[len(prompted) : runs.starts[written[0]]]
    is_blank = answered.text.startswith(prompted) and not between.strip()
    return (GenerationPrompt((), "", False, len(between) if is_blank else 0),)


def _openers(template: str, variables: Mapping[str, Any]) -> dict[str, str]:
    """What the template prints before the text of messages that are not the first."""
    messages = LATER
    printed = probe(template, variables, messages) or probe(template, variables, with_parts(messages))
    if printed is None:
        return {}
    return {str(messages[message]["role"]): _opener(printed, message) for message in (1, 2)}


def _opener(printed: RenderedText, message: int) -> str:
    """What the template prints before the text of a message."""
    runs = run_table(printed.runs)
    written = np.flatnonzero(runs.writer == message)
    inputs = np.flatnonzero(runs.input_of == message)
    if not len(written) or not len(inputs):
        return ""
    return printed.text[runs.starts[written[0]] : runs.starts[inputs[0]]]
