"""Renders conversations to attributed tokens and checks them against transformers."""

from __future__ import annotations

import datetime as dt
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import jinja2
import numpy as np

from tokscore.dataset.choices import MessageForm
from tokscore.dataset.errors import ConversationError, DifferenceError, UsageError, foreign
from tokscore.dataset.files import PathName, path_name
from tokscore.dataset.settings import changed
from tokscore.dataset.tokens import NO_MESSAGE, NOT_PRINTED, MessageFacts, MessageFlag, RenderedTokens
from tokscore.rendering.attribution.generation_tags import apply_tags
from tokscore.rendering.attribution.message_flags import encoded_twice
from tokscore.rendering.attribution.owners import (
    dropped_characters,
    printed_as_python,
    run_table,
    token_owners,
    untracked_characters,
)
from tokscore.rendering.attribution.prompts import Prompts
from tokscore.rendering.attribution.sampled import SampledRule
from tokscore.rendering.attribution.settings import RenderKeywords, RenderSettings, Verify
from tokscore.rendering.attribution.tokenizer import ChatTokenizer, Encoding
from tokscore.rendering.attribution.turns import without_owner
from tokscore.rendering.conversations.conversation import Conversation, as_conversation, tool_names
from tokscore.rendering.messages.forms import may_change
from tokscore.rendering.messages.needs import Needs, find_needs
from tokscore.rendering.messages.refusals import explained
from tokscore.rendering.messages.showing import print_shown
from tokscore.rendering.messages.unprinted import unprinted_keys
from tokscore.rendering.templates.files import read_template
from tokscore.rendering.templates.limits import TemplateLimits
from tokscore.rendering.templates.render import (
    TEMPLATE_FAILURES,
    RefusedError,
    RenderedText,
    check_template,
    has_generation_tags,
    prepare_messages,
    read_names,
    render_template,
    uses_date,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FIRST_VERIFIED = 10
_VERIFIED_EVERY = 100
_KEPT_RULES = 64


class Printed(NamedTuple):
    """A conversation as the template printed it, not yet tokenised.

    Attributes:
        record: As it was read.
        conversation: As the template was shown it.
        changes: What was changed in it, by index of the message.
        number: Its number in the input.
        template: What printed it.
        kwargs: Template kwargs of the run and of the record.
        variables: The same with the special tokens.
        messages: As the template saw them.
        rendered: The text with its origins.
    """

    record: Conversation
    conversation: Conversation
    changes: Mapping[int, tuple[MessageFlag, ...]]
    number: int
    template: str
    kwargs: Mapping[str, Any]  # Any: JSON values
    variables: Mapping[str, Any]
    messages: list[dict[str, Any]]
    rendered: RenderedText


def _loaded(model: PathName, settings: RenderSettings) -> ChatTokenizer:
    if not isinstance(model, str | os.PathLike):
        raise UsageError(
            f"the tokenizer is {type(model).__name__}; expected a ChatTokenizer, a model directory or a hub "
            "id."
        )
    return ChatTokenizer(
        path_name(model),
        revision=settings.revision,
        template=None if settings.template is None else read_template(settings.template),
        trust_remote_code=settings.trust_remote_code,
        library=settings.tokenizer,
    )


class Renderer:
    """One tokenizer and template with the settings of a run.

    Attributes:
        tokenizer: As given.
        settings: As given.
        now: What templates that print the date take it to be.
    """

    def __init__(
        self,
        tokenizer: ChatTokenizer | PathName,
        /,
        settings: RenderSettings | None = None,
        **changes: Unpack[RenderKeywords],
    ) -> None:
        """Prepare rendering.

        Args:
            tokenizer: Tokenizer with its template; or a model directory or hub id, whose tokenizer is loaded.
            settings: Those of the template, `add_generation_prompt` and `verify`; others are for the source.
            **changes: Single settings, instead of those in `settings`.

        Raises:
            UsageError: A setting cannot have its value.
            InputError: There is no such model, the template does not parse, or there is none.
        """
        self.settings = changed(settings or RenderSettings(), changes)
        if not isinstance(tokenizer, ChatTokenizer):
            tokenizer = _loaded(tokenizer, self.settings)
        self.tokenizer = tokenizer
        self.now = self.settings.now()
        self._limits = TemplateLimits(self.settings.template_timeout, self.settings.template_characters)
        self._is_special = tokenizer.flags(tokenizer.special_ids)
        self._rules: dict[str, SampledRule] = {}
        self._needs: dict[str, Needs] = {}
        for has_tools in (False, True):
            check_template(tokenizer.chat_template(has_tools=has_tools))

    def templates(self) -> str:
        """The sources of its templates, of conversations without tools and with them."""
        return "\n".join(self.tokenizer.chat_template(has_tools=has_tools) for has_tools in (False, True))

    def with_generation_prompt(self, wanted: bool) -> Renderer:
        """The same renderer, ending conversations with the generation prompt or not."""
        other = copy(self)
        other.settings = replace(self.settings, add_generation_prompt=wanted)
        return other

    def render(
        self,
        conversation: Conversation | Mapping[str, Any],  # Any: JSON values
        *,
        number: int = 0,
    ) -> RenderedTokens:
        """Tokens of one conversation with the owner of each.

        Args:
            conversation: Checked record, or one of the format `openai`: `{"messages": [...]}`.
            number: Its number in the input; decides whether a sample of ids is verified.

        Raises:
            ConversationError: The template or tokenizer refuses it, or transformers renders it otherwise.
        """
        printed = self.print(as_conversation(conversation), number)
        return self.finish(printed, self.tokenizer.token_ids([printed.rendered.text])[0])

    def print(self, conversation: Conversation, number: int) -> Printed:
        """The first half of `render`: what has to be tokenised.

        Raises:
            ConversationError: The template refuses it.
        """
        template = self._template_of(conversation)
        kwargs = {**self.settings.template_kwargs, **(conversation.template_kwargs or {})}
        variables = {**self.tokenizer.variables, **kwargs}
        prepared: list[dict[str, Any]] = []

        def show(shown: Conversation) -> RenderedText:
            prepared[:] = prepare_messages(shown.messages)
            return render_template(
                self._template_of(shown),
                prepared,
                tools=shown.tools,
                documents=None,
                add_generation_prompt=self.settings.add_generation_prompt,
                variables=variables,
                limits=self._limits,
                now=self.now,
            )

        with _clear_errors():
            arguments = (
                conversation,
                template,
                self.settings.messages,
                lambda: self._needs_of(template),
                show,
            )
            try:
                shown, rendered = print_shown(*arguments)
            except RefusedError as error:
                raise explained(error, *arguments) from error
            if not rendered.text.isascii():
                rendered.text.encode()  # tokenizers do not say where a surrogate is
        return Printed(
            conversation,
            shown.conversation,
            shown.flags,
            number,
            self._template_of(shown.conversation),
            kwargs,
            variables,
            prepared,
            rendered,
        )

    def has_forms(self, conversation: Conversation) -> bool:
        """Whether it depends on who recorded a conversation how its messages are shown."""
        return self.settings.messages is MessageForm.AUTO and any(map(may_change, conversation.messages))

    def _template_of(self, conversation: Conversation) -> str:
        return self.tokenizer.chat_template(has_tools=conversation.tools is not None)

    def _needs_of(self, template: str) -> Needs:
        if template not in self._needs:
            variables = {**self.tokenizer.variables, **self.settings.template_kwargs}
            self._needs[template] = find_needs(
                lambda messages: render_template(
                    template, prepare_messages(messages), variables=variables, limits=self._limits
                )
            )
        return self._needs[template]

    def reference_ids(self, batch: Sequence[Printed]) -> dict[int, list[int]]:
        """The ids of transformers' tokenizer for the texts whose ids are verified, by number in the input.

        `apply_chat_template` makes the same call with its text; those it is asked for itself are left out.
        """
        verified = [printed for printed in batch if self._verifies_ids(printed.number)]
        if not verified:
            return {}
        texts = [printed.rendered.text for printed in verified]
        ids = self.tokenizer.hf(texts, add_special_tokens=False)["input_ids"]
        return {printed.number: each for printed, each in zip(verified, ids, strict=True)}

    def _verifies_ids(self, number: int) -> bool:
        if self.settings.verify is Verify.FULL:
            return number >= _FIRST_VERIFIED
        return (
            self.settings.verify is Verify.SAMPLE
            and number >= _FIRST_VERIFIED
            and number % _VERIFIED_EVERY == 0
        )

    def finish(
        self,
        printed: Printed,
        token_ids: NDArray[np.int32],
        *,
        reference: Sequence[int] | None = None,
        check: bool = True,
    ) -> RenderedTokens:
        """The second half of `render`: `encoding` and `attribute`, with their arguments and errors."""
        return self.attribute(printed, self.encoding(printed, token_ids, reference=reference, check=check))

    def encoding(
        self,
        printed: Printed,
        token_ids: NDArray[np.int32],
        *,
        reference: Sequence[int] | None = None,
        check: bool = True,
    ) -> Encoding:
        """The tokens of a printed conversation, with their characters.

        Args:
            printed: What `print` returned.
            token_ids: What the tokenizer's `token_ids` gave for its text.
            reference: What `reference_ids` gave for it; by default it is asked for where it is needed.
            check: Compare with transformers, as far as the run asks for it.

        Raises:
            ConversationError: transformers renders it otherwise, or there are no tokens to attribute.
        """
        with _clear_errors():
            encoding = self.tokenizer.align(printed.rendered.text, token_ids)
            if check:
                encoding = self._checked(printed, encoding, reference)
            if not len(encoding.token_ids):
                raise ConversationError("renders to no token at all.")
            return encoding

    def attribute(self, printed: Printed, encoding: Encoding) -> RenderedTokens:
        """The tokens of a printed conversation with the owner of each.

        Args:
            printed: What `print` returned.
            encoding: Its tokens.

        Raises:
            ConversationError: They cannot be attributed.
        """
        with _clear_errors():
            return self._attribute(printed, encoding)

    def _attribute(self, printed: Printed, encoding: Encoding) -> RenderedTokens:
        conversation, messages, rendered = printed.conversation, printed.messages, printed.rendered
        roles = [str(message["role"]) for message in messages]
        rule, has_tools = self._rule(printed.variables), conversation.tools is not None
        runs = without_owner(
            rendered.text,
            run_table(rendered.runs),
            roles,
            rule.prompts(printed.template, has_tools=has_tools),
            bos=str(printed.variables.get("bos_token") or ""),
            has_generation_prompt=self.settings.add_generation_prompt,
        )
        owners = token_owners(runs, encoding)
        sampled = rule.apply(
            rendered.text,
            runs,
            encoding,
            owners,
            roles,
            template=printed.template,
            has_tools=has_tools,
            has_generation_prompt=self.settings.add_generation_prompt,
        )
        if has_generation_tags(printed.template):
            sampled = apply_tags(
                owners.is_generated, sampled, rendered.text, encoding, owners.message_indices
            )
        unknown = dict(sampled.unknown)
        if conversation.given:  # what the record says of its answers wins
            given = np.isin(owners.message_indices, list(conversation.given))
            is_answer = np.array([*(role == "assistant" for role in roles), False])[owners.message_indices]
            given[1:] |= given[:-1] & ~is_answer[1:]  # a stop that opens the next message
            sampled.mask[given] = 0
            unknown = {i: reason for i, reason in unknown.items() if i not in conversation.given}
        dropped = dropped_characters(messages, rendered.runs)
        untracked = untracked_characters(rendered.runs)
        control = self._is_special[encoding.token_ids] & owners.starts_in_body
        controlled = Counter(owners.message_indices[control].tolist())
        found = [
            (flag, messages_with)
            for flag, messages_with in (
                (MessageFlag.CONTROL_TOKENS, controlled),
                (MessageFlag.UNTRACKED, untracked),
                (MessageFlag.ENCODED_TWICE, encoded_twice(messages, rendered.text, rendered.runs)),
                (MessageFlag.PRINTED_AS_PYTHON, printed_as_python(rendered.runs)),
                (MessageFlag.DROPPED, {i for i, n in enumerate(dropped) if n}),
            )
            if messages_with
        ]
        unprinted = unprinted_keys(
            messages, rendered.runs, read=read_names(printed.template), dropped=dropped
        )
        facts = []
        given_roles = [str(message["role"]) for message in printed.record.messages]
        for i, (role, name) in enumerate(zip(given_roles, tool_names(conversation.messages), strict=True)):
            flags = (
                *printed.changes.get(i, ()),
                *sampled.flags.get(i, ()),
                *(flag for flag, messages_with in found if i in messages_with),
                *(NOT_PRINTED + key for key in unprinted.get(i, ())),
            )
            facts.append(MessageFacts(role, name, dropped[i], flags, unknown.get(i), controlled[i]))
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

    def prompts(self, *, has_tools: bool) -> Prompts:
        """What the template prints before an answer, with or without tool definitions."""
        template = self.tokenizer.chat_template(has_tools=has_tools)
        return self._rule({**self.tokenizer.variables, **self.settings.template_kwargs}).prompts(
            template, has_tools=has_tools
        )

    def _rule(self, variables: Mapping[str, Any]) -> SampledRule:
        key = repr(sorted(variables.items(), key=lambda item: item[0]))
        if key not in self._rules:
            if len(self._rules) >= _KEPT_RULES:  # records can carry template kwargs of their own
                self._rules.clear()
            self._rules[key] = SampledRule(self.tokenizer, variables)
        return self._rules[key]

    def _checked(self, printed: Printed, encoding: Encoding, reference: Sequence[int] | None) -> Encoding:
        """The encoding, compared with transformers' own rendering as far as asked for.

        Where fastokens made other ids than tokenizers does, it is given up and those of tokenizers come back.
        """
        if self.settings.verify is Verify.OFF:
            return encoding
        hf, ours = self.tokenizer.hf, printed.rendered.text

        def theirs(*, tokenize: bool) -> Any:  # Any: text or ids
            try:
                with _clock(self.now) if uses_date(printed.template) else nullcontext():
                    return hf.apply_chat_template(
                        list(printed.conversation.messages),
                        tools=printed.conversation.tools,
                        chat_template=printed.template,
                        add_generation_prompt=self.settings.add_generation_prompt,
                        tokenize=tokenize,
                        return_dict=False,
                        **printed.kwargs,
                    )
            except (jinja2.TemplateError, *TEMPLATE_FAILURES) as error:
                raise ConversationError(
                    f"renders here, but transformers refuses it: {type(error).__name__}: {foreign(error)}"
                ) from error

        text = theirs(tokenize=False)
        if text != ours:
            at = next(
                (i for i, (a, b) in enumerate(zip(text, ours, strict=False)) if a != b),
                min(len(text), len(ours)),
            )
            difference = DifferenceError(
                f"renders otherwise than in transformers from character {at}: "
                f"{foreign(repr(ours[at : at + 40]))} here, {foreign(repr(text[at : at + 40]))} there. "
                "Please report the template."
            )
            difference.character = at
            raise difference
        if printed.number < _FIRST_VERIFIED:
            reference = theirs(tokenize=True)
        elif not self._verifies_ids(printed.number):
            return encoding
        elif reference is None:
            reference = self.reference_ids([printed])[printed.number]
        ids = np.array(reference, np.int32)
        text_ids = self.tokenizer.ids
        if text_ids.is_fast and not np.array_equal(ids, encoding.token_ids):
            text_ids.switch_back(f"its ids differ for conversation {printed.number + 1} of the input")
            encoding = self.tokenizer.align(ours, self.tokenizer.token_ids([ours])[0])
        if not np.array_equal(ids, encoding.token_ids):
            n = min(len(ids), len(encoding.token_ids))
            differing = np.flatnonzero(ids[:n] != encoding.token_ids[:n])
            at = int(differing[0]) if len(differing) else n
            difference = DifferenceError(
                f"gets other ids than in transformers from token {at}: "
                f"{encoding.token_ids[at : at + 5].tolist()} here, {ids[at : at + 5].tolist()} there. "
                "Please report the tokenizer."
            )
            difference.token = at
            raise difference
        return encoding


@contextmanager
def _clear_errors() -> Iterator[None]:
    try:
        yield
    except RecursionError:
        raise ConversationError("is nested too deeply to render.") from None
    except UnicodeEncodeError as error:
        bad = error.object[error.start : error.end]
        raise ConversationError(
            f"holds {bad!r}, half of a character pair, which is no text; expected valid Unicode."
        ) from error


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
