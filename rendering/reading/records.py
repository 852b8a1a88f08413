"""The records of planned files, read in their format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tokscore.dataset.errors import ConversationError
from tokscore.dataset.manifest import Part
from tokscore.dataset.tokens import FailedConversation
from tokscore.rendering.conversations.conversation import Conversation, decode_record
from tokscore.rendering.conversations.trace import Node, Trace, linear
from tokscore.rendering.documents.document import Document
from tokscore.rendering.reading.files import Line
from tokscore.rendering.reading.formats import parse_record
from tokscore.rendering.reading.formats.format import Place
from tokscore.rendering.reading.plan import Plan, read_lines


class TraceRecord(NamedTuple):
    """One record as a trajectory.

    Attributes:
        line: Where it was read.
        name: Base name of the input.
        trace: What it holds.
    """

    line: Line
    name: str
    trace: Trace


class Records:
    """Planned files with the format of their records.

    Attributes:
        plan: What is read.
        format: How.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.format = plan.format

    def read(self, line: Line, part: Part) -> Trace | Conversation | Document:
        """The record in one line.

        Raises:
            ConversationError: It cannot be used.
        """
        place = Place(self.plan.places[part.file], line.number)
        return parse_record(
            decode_record(line.content), self.format, place, is_given=self.plan.is_format_given
        )

    def traces(self) -> Iterator[TraceRecord | FailedConversation]:
        """All records in the order of the input."""
        for part in self.plan.parts:
            name = self.plan.inputs[part.file].name
            for line in read_lines(self.plan, part):
                try:
                    found = self.read(line, part)
                    if isinstance(found, Document):
                        raise ConversationError("is plain text, which has no turns that could be counted.")
                except ConversationError as error:
                    yield failure_at(line, name, error)
                    continue
                trace = _as_trace(found) if isinstance(found, Conversation) else found
                yield TraceRecord(line, name, trace)


def failure_at(line: Line, name: str, error: ConversationError) -> FailedConversation:
    """The error row of a record.

    Args:
        line: Where it was read.
        name: Base name of the input.
        error: What is wrong with it.
    """
    file, number = error_place(error, name, line.number)
    return FailedConversation(line.conversation_id, file, number, error.path, error.reason, error.hint)


def error_place(error: ConversationError, name: str, number: int) -> tuple[str, int]:
    """File and line of what is wrong: those of the record, if it was not put together from several files."""
    file, _, line = error.source.rpartition(":")
    return (file, int(line)) if file else (name, number)


def _as_trace(conversation: Conversation) -> Trace:
    messages = conversation.messages
    nodes = [Node(-1, (message,), message["role"] == "assistant") for message in messages]
    return Trace(linear(nodes), conversation.tools, conversation.template_kwargs, conversation.metadata)
