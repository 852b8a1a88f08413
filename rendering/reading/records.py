"""The records of planned files, read in their format."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from tokscore.dataset.errors import ConversationError
from tokscore.dataset.manifest import Part
from tokscore.dataset.tokens import FailedConversation
from tokscore.rendering.conversations.conversation import Conversation, decode_record
from tokscore.rendering.conversations.trace import Node, Trace, linear
from tokscore.rendering.reading.formats import Place, detect_format, load_format, parse_record
from tokscore.rendering.reading.plan import Line, Plan, read_lines

_TRIED_PARTS, _TRIED_LINES = 4, 20


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

    def __init__(self, plan: Plan, input_format: str | None = None) -> None:
        """Find the format.

        Args:
            plan: What is read.
            input_format: One of `formats.FORMATS`; by default that of the first record that looks like one,
                `openai` where none does.

        Raises:
            UsageError: There is no such format.
        """
        self.plan = plan
        self.format = load_format(input_format or _find_format(plan))
        self._is_given = input_format is not None

    def read(self, line: Line, part: Part) -> Trace | Conversation:
        """The record in one line.

        Raises:
            ConversationError: It cannot be used.
        """
        place = Place(self.plan.places[part.file], line.number)
        return parse_record(decode_record(line.content), self.format, place, is_given=self._is_given)

    def traces(self) -> Iterator[TraceRecord | FailedConversation]:
        """All records in the order of the input."""
        for part in self.plan.parts:
            name = self.plan.inputs[part.file].name
            for line in read_lines(self.plan, part):
                try:
                    found = self.read(line, part)
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


def _find_format(plan: Plan) -> str:
    for part in plan.parts[:_TRIED_PARTS]:
        for line in islice(read_lines(plan, part), _TRIED_LINES):
            try:
                found = detect_format(decode_record(line.content))
            except ConversationError:
                continue
            if found is not None:
                return found.name
    return "openai"


def _as_trace(conversation: Conversation) -> Trace:
    messages = conversation.messages
    nodes = [Node(-1, (message,), message["role"] == "assistant") for message in messages]
    return Trace(linear(nodes), conversation.tools, conversation.template_kwargs, conversation.metadata)
