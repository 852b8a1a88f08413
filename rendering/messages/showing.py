"""Conversations printed in the form in which the template takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from tokscore.dataset.choices import MessageForm
from tokscore.dataset.tokens import MessageFlag
from tokscore.rendering.conversations.conversation import Conversation
from tokscore.rendering.messages.forms import forms_of
from tokscore.rendering.messages.needs import Needs
from tokscore.rendering.templates.render import RefusedError, RenderedText, read_names

NO_TOOLS_STATUS = "empty_tools_left_out"
# Prints a conversation as it is; raises RefusedError where the template does not take it.
Print = Callable[[Conversation], RenderedText]


class Shown(NamedTuple):
    """A conversation as a template was shown it.

    Attributes:
        conversation: With the messages and tools that it saw.
        flags: What was changed, by index of the message.
    """

    conversation: Conversation
    flags: Mapping[int, tuple[MessageFlag, ...]]


def shown_forms(
    conversation: Conversation, template: str, form: MessageForm, needs: Callable[[], Needs]
) -> Iterator[Shown]:
    """A conversation in each form that may be tried, the one that is meant first.

    Args:
        conversation: As in the record.
        template: Jinja source.
        form: What the user chose.
        needs: Of the template.
    """
    tools = conversation.tools
    is_served = form is MessageForm.SERVER or (form is MessageForm.AUTO and conversation.is_served)
    without = None if tools is None or len(tools) else _without_tools(conversation)
    bases = [conversation] if without is None else [without] if is_served else [conversation, without]
    for base in bases[: 1 if form is MessageForm.AS_IS else None]:
        for changed in forms_of(
            base.messages, form, is_served=is_served, needs=needs, read=read_names(template)
        ):
            yield Shown(replace(base, messages=changed.messages) if changed.flags else base, changed.flags)


def _without_tools(conversation: Conversation) -> Conversation:
    status = ",".join(filter(None, (conversation.status, NO_TOOLS_STATUS)))
    return replace(conversation, tools=None, status=status)


def print_shown(
    conversation: Conversation, template: str, form: MessageForm, needs: Callable[[], Needs], show: Print
) -> tuple[Shown, RenderedText]:
    """The first form of a conversation that the template takes, and what it prints.

    Args:
        conversation: As in the record.
        template: Jinja source.
        form: What the user chose.
        needs: Of the template.
        show: The template, with its variables.

    Raises:
        RefusedError: It takes none; the error of the first.
        ConversationError: One is beyond the limits.
    """
    refusal: RefusedError | None = None
    for shown in shown_forms(conversation, template, form, needs):
        try:
            return shown, show(shown.conversation)
        except RefusedError as error:
            refusal = refusal or error
    assert refusal is not None
    raise refusal
