"""What would make a template take a conversation that it refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from tokscore.dataset.choices import MessageForm
from tokscore.dataset.errors import ConversationError, foreign, or_skip
from tokscore.dataset.tokens import MessageFlag
from tokscore.rendering.conversations.conversation import Conversation
from tokscore.rendering.messages.needs import Needs
from tokscore.rendering.messages.showing import Print, shown_forms
from tokscore.rendering.templates.render import RefusedError

_WORDS: Mapping[MessageFlag, str] = {
    MessageFlag.FUNCTION_CALL: "function_call becomes a tool call",
    MessageFlag.DEVELOPER: "the role developer becomes system",
    MessageFlag.PARTS: "parts become one text",
    MessageFlag.EMPTY_CONTENT: 'missing content becomes ""',
    MessageFlag.ARGUMENTS: "arguments given as JSON text become objects",
    MessageFlag.ARGUMENTS_LOST: "arguments that are no JSON object become {}",
    MessageFlag.CALL_FORM: 'calls get their "type": "function"',
    MessageFlag.CALL_IDS: "ids of calls become nine letters and digits",
    MessageFlag.NO_CALLS: "empty tool_calls are left out",
    MessageFlag.KEYS: "keys that servers do not pass on are left out",
}
_OTHER_FORMS = {
    MessageForm.AS_IS: (MessageForm.AUTO, MessageForm.SERVER),
    MessageForm.AUTO: (MessageForm.SERVER,),
    MessageForm.SERVER: (MessageForm.AUTO,),
}
_DROP = "drop such conversations"


def explained(
    refusal: RefusedError,
    conversation: Conversation,
    template: str,
    form: MessageForm,
    needs: Callable[[], Needs],
    show: Print,
) -> RefusedError:
    """The refusal with a hint at what was tried and works.

    Args:
        refusal: Of the template.
        conversation: As in the record.
        template: Jinja source.
        form: How its messages were shown.
        needs: Of the template.
        show: The template, with its variables.
    """
    for hint, tried in _tries(conversation, template, form, needs):
        try:
            show(tried)
        except (ConversationError, RecursionError):
            continue
        return RefusedError(refusal.reason, path=refusal.path, hint=hint, source=refusal.source)
    return refusal


def _tries(
    conversation: Conversation, template: str, form: MessageForm, needs: Callable[[], Needs]
) -> Iterator[tuple[str, Conversation]]:
    for other in _OTHER_FORMS[form]:
        for shown in shown_forms(conversation, template, other, needs):
            if shown.flags or shown.conversation is not conversation:
                yield (
                    f"Give `messages='{other}'`, which works here: {_changes(shown.flags)}.",
                    shown.conversation,
                )
    if conversation.tools is not None:
        hint = or_skip("The template takes it without its tools: leave them out", _DROP)
        yield hint, replace(conversation, tools=None)
    roles = dict.fromkeys(str(message["role"]) for message in conversation.messages)
    for role in [role for role in roles if role not in ("user", "assistant")]:
        kept = [message for message in conversation.messages if message["role"] != role]
        named = f"the messages of the role {foreign(repr(role))}"
        hint = or_skip(f"The template takes it without {named}: leave them out", _DROP)
        if kept:
            yield hint, replace(conversation, messages=kept)


def _changes(flags: Mapping[int, tuple[MessageFlag, ...]]) -> str:
    first: dict[MessageFlag, int] = {}
    for i, each in flags.items():
        for flag in each:
            first.setdefault(flag, i)
    words = [f"{_WORDS[flag]} (messages[{i}])" for flag, i in first.items()]
    return ", ".join(words) or "empty tools are left out"
