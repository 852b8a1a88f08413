"""Renders conversations to attributed tokens and checks them against transformers."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from enum import StrEnum
from typing import Any

import jinja2
import numpy as np

from tokscore.rendering.attribution import (
    dropped_characters,
    encoded_twice,
    printed_as_python,
    run_table,
    token_owners,
    untracked_characters,
)
from tokscore.rendering.conversations import Conversation, tool_names
from tokscore.rendering.errors import ConversationError, InputError
from tokscore.rendering.policies import apply_tags
from tokscore.rendering.rendered import NO_MESSAGE, MessageFacts, MessageFlag, RenderedTokens
from tokscore.rendering.sampled import SampledRule
from tokscore.rendering.templates import (
    RenderedText,
    check_template,
    has_generation_tags,
    prepare_messages,
    render_template,
)
from tokscore.rendering.tokenizer import ChatTokenizer, Encoding

_FIRST_VERIFIED = 10
_VERIFIED_EVERY = 100
_USUAL_ROLES = frozenset({"system", "user", "assistant", "tool"})


class Verify(StrEnum):
    """How much is compared with transformers' own rendering."""

    SAMPLE = "sample"  # the text of all, the ids of the first ten and of every hundredth
    FULL = "full"  # text and ids of all
    OFF = "off"


class Renderer:
    """One tokenizer and template with the settings of a run."""

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        *,
        template_kwargs: Mapping[str, Any] | None = None,  # Any: JSON values
        add_generation_prompt: bool = False,
        verify: Verify = Verify.SAMPLE,
        now: dt.datetime | None = None,
    ) -> None:
        """Prepare rendering.

        Args:
            tokenizer: Tokenizer with its template.
            template_kwargs: Variables for the template, such as `enable_thinking`; a record's own win.
            add_generation_prompt: End every conversation with the opener of the next answer.
            verify: How much to compare with transformers.
            now: What templates that print the date take it to be; the time of this call by default.

        Raises:
            InputError: The template does not parse, or there is none.
        """
        self.tokenizer = tokenizer
        self._kwargs = dict(template_kwargs or {})
        self._add_generation_prompt = add_generation_prompt
        self._verify = verify
        self._now = now or dt.datetime.now()
        self._rules: dict[str, SampledRule] = {}
        for has_tools in (False, True):
            try:
                check_template(tokenizer.chat_template(has_tools=has_tools))
            except jinja2.TemplateSyntaxError as error:
                raise InputError(
                    f"the chat template does not parse: line {error.lineno}: {error.message}"
                ) from error

    def with_generation_prompt(self, wanted: bool) -> Renderer:
        """The same renderer, ending conversations with the opener of the next answer or not."""
        other = copy(self)
        other._add_generation_prompt = wanted
        return other

    def render(self, conversation: Conversation, *, number: int = 0) -> RenderedTokens:
        """Tokens of one conversation with the owner of each.

        Args:
            conversation: Checked record.
            number: Its number in the input; decides whether a sample of ids is verified.

        Raises:
            ConversationError: The template or tokenizer refuses it, or transformers renders it otherwise.
        """
        try:
            return self._render(conversation, number)
        except RecursionError:
            raise ConversationError("is nested too deeply to render.") from None
        except UnicodeEncodeError as error:
            bad = error.object[error.start : error.end]
            raise ConversationError(
                f"holds {bad!r}, half of a character pair, which is no text; expected valid Unicode."
            ) from error

    def _render(self, conversation: Conversation, number: int) -> RenderedTokens:
        messages = prepare_messages(conversation.messages)
        template = self.tokenizer.chat_template(has_tools=conversation.tools is not None)
        kwargs = {**self._kwargs, **(conversation.template_kwargs or {})}
        variables = {**self.tokenizer.variables, **kwargs}
        try:
            rendered = render_template(
                template,
                messages,
                tools=conversation.tools,
                documents=None,
                add_generation_prompt=self._add_generation_prompt,
                variables=variables,
                now=self._now,
            )
        except ConversationError as error:
            unusual = sorted({str(message["role"]) for message in messages} - _USUAL_ROLES)
            if not unusual:
                raise
            reason = f"{error.reason} Its roles include {', '.join(unusual)}."
            raise ConversationError(reason, path=error.path, hint=error.hint) from error
        encoding = self.tokenizer.encode(rendered.text)
        self._check(conversation, template, kwargs, rendered, encoding, number)
        if not len(encoding.token_ids):
            raise ConversationError("renders to no token at all.")
        return self._attribute(conversation, template, variables, messages, rendered, encoding)

    def _attribute(
        self,
        conversation: Conversation,
        template: str,
        variables: Mapping[str, Any],
        messages: list[dict[str, Any]],
        rendered: RenderedText,
        encoding: Encoding,
    ) -> RenderedTokens:
        runs = run_table(rendered.runs)
        owners = token_owners(runs, encoding)
        roles = [str(message["role"]) for message in messages]
        sampled = self._rule(variables).apply(
            rendered.text,
            runs,
            encoding,
            owners,
            roles,
            template=template,
            has_tools=conversation.tools is not None,
            has_generation_prompt=self._add_generation_prompt,
        )
        if has_generation_tags(template):
            sampled = apply_tags(
                owners.is_generated, sampled, rendered.text, encoding, owners.message_indices
            )
        dropped = dropped_characters(messages, rendered.runs)
        untracked = untracked_characters(rendered.runs)
        as_python = printed_as_python(rendered.runs)
        twice = encoded_twice(messages, rendered.runs)
        control = np.isin(encoding.token_ids, list(self.tokenizer.special_ids)) & owners.starts_in_body
        controlled = set(owners.message_indices[control].tolist())
        facts = []
        for i, (role, name) in enumerate(zip(roles, tool_names(conversation.messages), strict=True)):
            flags = list(sampled.flags.get(i, ()))
            flags += [MessageFlag.CONTROL_TOKENS] * (i in controlled)
            flags += [MessageFlag.UNTRACKED] * (i in untracked)
            flags += [MessageFlag.ENCODED_TWICE] * (i in twice)
            flags += [MessageFlag.PRINTED_AS_PYTHON] * (i in as_python)
            flags += [MessageFlag.DROPPED] * (dropped[i] > 0)
            facts.append(MessageFacts(role, name, dropped[i], tuple(flags), sampled.unknown.get(i)))
        return RenderedTokens(
            token_ids=encoding.token_ids,
            message_indices=owners.message_indices,
            sampled_mask=sampled.mask,
            is_content=owners.is_content,
            source_codes=owners.source_codes,
            sources=runs.sources,
            messages=tuple(facts),
            n_untracked_characters=untracked.get(NO_MESSAGE, 0),
            text=rendered.text,
            char_starts=encoding.starts,
            char_stops=encoding.stops,
        )

    def _rule(self, variables: Mapping[str, Any]) -> SampledRule:
        key = repr(sorted(variables.items(), key=lambda item: item[0]))
        if key not in self._rules:
            self._rules[key] = SampledRule(self.tokenizer, variables)
        return self._rules[key]

    def _check(
        self,
        conversation: Conversation,
        template: str,
        kwargs: Mapping[str, Any],
        rendered: RenderedText,
        encoding: Encoding,
        number: int,
    ) -> None:
        """Compare with transformers' own rendering, as far as asked for."""
        if self._verify is Verify.OFF:
            return

        def theirs(*, tokenize: bool) -> Any:  # Any: text or ids
            with _clock(self._now):
                return self.tokenizer.hf.apply_chat_template(
                    list(conversation.messages),
                    tools=conversation.tools,
                    chat_template=template,
                    add_generation_prompt=self._add_generation_prompt,
                    tokenize=tokenize,
                    return_dict=False,
                    **kwargs,
                )

        text = theirs(tokenize=False)
        if text != rendered.text:
            at = next(
                (i for i, (a, b) in enumerate(zip(text, rendered.text, strict=False)) if a != b),
                min(len(text), len(rendered.text)),
            )
            raise ConversationError(
                f"renders otherwise than in transformers from character {at}: "
                f"{rendered.text[at : at + 40]!r} here, {text[at : at + 40]!r} there. "
                "Please report the template."
            )
        if self._verify is Verify.FULL or number < _FIRST_VERIFIED or number % _VERIFIED_EVERY == 0:
            ids = np.array(theirs(tokenize=True), np.int32)
            if not np.array_equal(ids, encoding.token_ids):
                n = min(len(ids), len(encoding.token_ids))
                differing = np.flatnonzero(ids[:n] != encoding.token_ids[:n])
                at = int(differing[0]) if len(differing) else n
                raise ConversationError(
                    f"gets other ids than in transformers from token {at}: "
                    f"{encoding.token_ids[at : at + 5].tolist()} here, {ids[at : at + 5].tolist()} there. "
                    "Please report the tokenizer."
                )


@contextmanager
def _clock(now: dt.datetime) -> Iterator[None]:
    """Let transformers' templates take `now` for the time."""
    from transformers.utils import chat_template_utils

    class Fixed(dt.datetime):
        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> Fixed:  # noqa: ARG003
            return cls.combine(now.date(), now.time())

    clock = getattr(chat_template_utils, "datetime", None)
    if clock is None:
        yield
        return
    chat_template_utils.datetime = Fixed
    try:
        yield
    finally:
        chat_template_utils.datetime = clock
