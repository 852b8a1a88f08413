"""Where tokens come from: conversation files rendered on the way, or a token dataset."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec
import pyarrow as pa

from tokscore.dataset.errors import ConversationError, OtherTokenizerError, UsageError
from tokscore.dataset.manifest import SCORE_SETTINGS, InputFile, Part, Setting, TokenizerIdentity
from tokscore.dataset.reading import Dataset
from tokscore.dataset.tokens import ConversationRow, FailedConversation, RenderedConversation, RenderedTokens
from tokscore.rendering.attribution.length import LengthLimit
from tokscore.rendering.attribution.tokenizer import ChatTokenizer
from tokscore.rendering.attribution.vocabulary_table import vocabulary_table
from tokscore.rendering.batches import render_many
from tokscore.rendering.conversations.conversation import Conversation
from tokscore.rendering.documents.chunking import Chunking
from tokscore.rendering.documents.document import Document
from tokscore.rendering.documents.windows import Window, windows
from tokscore.rendering.reading.files import Line
from tokscore.rendering.reading.formats.mapped import NAME as MAPPED
from tokscore.rendering.reading.plan import Plan, read_lines
from tokscore.rendering.reading.records import Records, error_place
from tokscore.rendering.recorded_ids.attribute import Recorded, branch_items
from tokscore.rendering.recorded_ids.branch import RecordedBranch
from tokscore.rendering.templates.render import uses_date

if TYPE_CHECKING:
    from tokscore.rendering.attribution.renderer import Renderer
    from tokscore.rendering.tokenizers.text_ids import TextIds

UNTRACKED_STATUS = "untracked_text"


class TokenSource(Protocol):
    """Planned input that yields attributed tokens part by part."""

    @property
    def inputs(self) -> Sequence[InputFile]:
        """The files behind it."""
        ...

    @property
    def parts(self) -> Sequence[Part]:
        """The plan, in order."""
        ...

    @property
    def n_conversations(self) -> int:
        """How many records all parts hold, whatever their branches, those that fail included."""
        ...

    @property
    def tokenizer(self) -> TokenizerIdentity:
        """What made the ids."""
        ...

    @property
    def settings(self) -> dict[str, Setting]:
        """Rendering settings that change ids or attribution."""
        ...

    @property
    def text_ids(self) -> TextIds | None:
        """What makes the ids; None where they are there already."""
        ...

    @property
    def tokenizer_details(self) -> dict[str, Setting] | None:
        """The library that makes or made the ids, for the manifest; None where it is not known."""
        ...

    def part_bytes(self, part: Part) -> int:
        """About how much work a part is, in bytes."""
        ...

    def read(self, part: Part) -> Iterator[RenderedConversation | FailedConversation]:
        """The conversations of one part in input order; one that cannot be used comes as a failure."""
        ...

    def vocabulary(self) -> pa.Table:
        """Schema `tables.VOCABULARY`."""
        ...


class ConversationSource:
    """Conversation files, rendered as they are read."""

    def __init__(
        self,
        plan: Plan,
        renderer: Renderer,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,  # Any: JSON values
        records: Records | None = None,
    ) -> None:
        """Bring together what a run needs.

        Args:
            plan: The files and their parts.
            renderer: With the settings of the run.
            tools: Definitions for records that carry none.
            records: What reads the plan; by default as OpenAI's messages.
        """
        self.plan = plan
        self._records = Records(plan) if records is None else records
        self.renderer = renderer
        self._tools = tools
        # Made here, so that what cannot be written is refused before anything is rendered or planned.
        self._recorded: dict[str, Setting] = {
            "template_kwargs": _sorted_json(dict(renderer.settings.template_kwargs)).decode(),
            "tools_sha256": None if tools is None else sha256(_sorted_json(tools)).hexdigest(),
        }
        self.length_limit = LengthLimit.of(renderer.settings)
        self._chunking = Chunking.of(renderer.settings)
        self.inputs: Sequence[InputFile] = plan.inputs
        self.parts: Sequence[Part] = plan.parts
        self.n_conversations = plan.n_records
        self.tokenizer = renderer.tokenizer.identity()

    @property
    def text_ids(self) -> TextIds:
        """The tokenizer's."""
        return self.renderer.tokenizer.ids

    @property
    def tokenizer_details(self) -> dict[str, Setting]:
        """The library that makes the ids."""
        return self.text_ids.details

    @property
    def settings(self) -> dict[str, Setting]:
        """What changes ids or attribution, for the manifest."""
        import transformers

        asked, tokenizer = self.renderer.settings, self.renderer.tokenizer
        limit = self.length_limit
        settings: dict[str, Setting] = {
            **self._recorded,
            "max_tokens": asked.max_tokens,
            "truncate": None if limit is None else limit.truncate.value,
            "add_generation_prompt": asked.add_generation_prompt,
            "verify": asked.verify.value,
            "transformers": transformers.__version__,
            "input_format": self._records.format.name,
        }
        if asked.trust_remote_code:
            settings["trust_remote_code"] = True
        if self._records.format.name == MAPPED:
            settings["map"] = self._records.format.fields
        settings["messages"] = asked.messages.value
        given = {"chunk": asked.chunk, "stride": asked.stride, "context": asked.context}
        settings |= {name: value for name, value in given.items() if value is not None}
        if any(uses_date(tokenizer.chat_template(has_tools=has_tools)) for has_tools in (False, True)):
            settings["template_time"] = self.renderer.now.isoformat()
        return settings

    def parse(self, line: Line, part: Part) -> Iterable[Conversation | RecordedBranch | Window]:
        """The branches in one line, with the tools of the run if it carries none, or the windows of a text.

        Raises:
            ConversationError: The record cannot be used.
        """
        found = self._records.read(line, part)
        if isinstance(found, Document):
            return windows(found, self.renderer.tokenizer, self._chunking)
        if found.tools is None:
            found = replace(found, tools=self._tools)
        is_served = self._records.format.is_served
        if isinstance(found, Conversation):
            return [replace(found, is_served=is_served)]
        return branch_items(found, self.renderer.tokenizer, is_served=is_served)

    def part_bytes(self, part: Part) -> int:
        """Bytes of its lines."""
        return part.stop - part.start

    def read(self, part: Part) -> Iterator[RenderedConversation | FailedConversation]:
        """Render the lines of one part; the branches of a record follow each other."""
        name = self.inputs[part.file].name
        waiting: deque[_Waiting] = deque()

        def parsed() -> Iterator[Conversation | RecordedBranch | Window | ConversationError]:
            for line in read_lines(self.plan, part):
                items: Iterable[Conversation | RecordedBranch | Window | ConversationError]
                try:
                    items = self.parse(line, part)
                except ConversationError as error:
                    items = [error]
                for branch, item in enumerate(items):
                    waiting.append(_Waiting(line.conversation_id, line.number, branch, _metadata_of(item)))
                    yield item

        for rendered in render_many(self.renderer, parsed(), first_number=part.first_line - 1):
            place = waiting.popleft()
            try:
                tokens, status = self.finish(rendered)
            except ConversationError as error:
                file, number = error_place(error, name, place.line)
                yield FailedConversation(
                    place.conversation_id, file, number, error.path, error.reason, error.hint
                )
                continue
            row = ConversationRow(
                place.conversation_id, place.branch, name, place.line, status, place.metadata
            )
            yield RenderedConversation(row, tokens)

    def finish(self, rendered: RenderedTokens | Recorded | ConversationError) -> tuple[RenderedTokens, str]:
        """What enters the dataset of a rendered conversation, and its status.

        Raises:
            ConversationError: It is one, or the conversation is too long.
        """
        if isinstance(rendered, ConversationError):
            raise rendered
        tokens, status = rendered if isinstance(rendered, Recorded) else (rendered, None)
        untracked = UNTRACKED_STATUS if tokens.n_untracked_characters else None
        cut = None
        if self.length_limit is not None:
            tokens, cut = self.length_limit.apply(tokens)
        return tokens, ",".join(filter(None, (status, untracked, cut))) or "ok"

    def vocabulary(self) -> pa.Table:
        """The tokenizer's."""
        return vocabulary_table(self.renderer.tokenizer)


class _Waiting(NamedTuple):
    """A branch that is being rendered."""

    conversation_id: str
    line: int
    branch: int
    metadata: str | None


def _metadata_of(item: Conversation | RecordedBranch | Window | ConversationError) -> str | None:
    if isinstance(item, ConversationError):
        return None
    return item.conversation.metadata if isinstance(item, RecordedBranch) else item.metadata


class DatasetSource:
    """A dataset that an earlier run wrote: its tokens, with or without scores."""

    def __init__(
        self, root: Path, *, model: str, revision: str | None = None, trust_remote_code: bool = False
    ) -> None:
        """Open it, and check that its ids mean the same to `model`.

        Args:
            root: The dataset.
            model: Model directory or hub id that will score it.
            revision: Of the model, on the hub.
            trust_remote_code: Whether code that comes with the model may run.

        Raises:
            InputError: No finished dataset is there, or the model's tokenizer has another vocabulary.
        """
        self._dataset = Dataset(root)
        manifest = self._dataset.manifest
        self._check_vocabulary(ChatTokenizer(model, revision=revision, trust_remote_code=trust_remote_code))
        self.inputs: Sequence[InputFile] = [
            InputFile(root.resolve().name, 0, manifest.plan_hash, manifest.earlier_plans)
        ]
        self.parts: Sequence[Part] = [
            Part(part.index, 0, i, i + 1, 1) for i, part in enumerate(manifest.parts)
        ]
        self.tokenizer = manifest.tokenizer
        # What another model said, and how, is no part of the tokens.
        self.settings: dict[str, Setting] = {
            name: value for name, value in manifest.settings.items() if name not in SCORE_SETTINGS
        }
        self.text_ids: TextIds | None = None
        self.tokenizer_details: dict[str, Setting] | None = manifest.tokenizer_details

    @cached_property
    def n_conversations(self) -> int:
        """Records, those that fail included: branches of one have the same id, and stay in one part."""
        return sum(len(self._conversation_ids(part)) for part in self.parts)

    def _conversation_ids(self, part: Part) -> set[str]:
        found = (place.conversation_id for place in self._dataset.places(part.index))
        return {*found, *(failure.conversation_id for failure in self._dataset.failures(part.index))}

    def part_bytes(self, part: Part) -> int:
        """Bytes of its table."""
        return self._dataset.part_bytes(part.index)

    def read(self, part: Part) -> Iterator[RenderedConversation | FailedConversation]:
        """The conversations of one part, then what failed when it was rendered."""
        yield from self._dataset.read_part(part.index)
        for failure in self._dataset.failures(part.index):
            yield failure._replace(is_known=True)

    def _check_vocabulary(self, tokenizer: ChatTokenizer) -> None:
        if tokenizer.sha256() == self._dataset.manifest.tokenizer.sha256:
            return
        texts = [
            dict(zip(table["token_id"].to_pylist(), table["text"].to_pylist(), strict=True))
            for table in (self.vocabulary(), vocabulary_table(tokenizer))
        ]
        for token_id, text in texts[0].items():
            if texts[1].get(token_id, text) != text:
                raise OtherTokenizerError(
                    str(self._dataset.root),
                    self._dataset.manifest.tokenizer.name,
                    tokenizer.name,
                    f"id {token_id} is {text!r} there and {texts[1][token_id]!r} here",
                )

    def vocabulary(self) -> pa.Table:
        """The dataset's."""
        return self._dataset.vocabulary()


def _sorted_json(value: object) -> bytes:
    try:
        return msgspec.json.encode(value, order="deterministic")
    except UnicodeEncodeError as error:
        raise UsageError(
            f"`template_kwargs` or `tools` has {error.object!a}, which holds half a character; expected "
            "text that is UTF-8."
        ) from error
