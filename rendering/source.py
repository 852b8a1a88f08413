"""Where tokens come from: conversation files rendered on the way, or a token dataset."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tokscore.dataset.errors import ConversationError, InputError, UsageError
from tokscore.dataset.manifest import MANIFEST_NAME, InputFile, Part, Setting, TokenizerIdentity
from tokscore.dataset.reading import VOCABULARY_NAME, Dataset
from tokscore.dataset.schema import DatasetKind
from tokscore.dataset.tokens import ConversationRow, FailedConversation, RenderedConversation, RenderedTokens
from tokscore.dataset.writing import part_name
from tokscore.rendering.attribution.length import LengthLimit
from tokscore.rendering.attribution.tokenizer import ChatTokenizer
from tokscore.rendering.attribution.vocabulary_table import vocabulary_table
from tokscore.rendering.batches import render_many
from tokscore.rendering.conversations.conversation import Conversation
from tokscore.rendering.messages.forms import MessageForm
from tokscore.rendering.reading.plan import PART_BYTES, Line, Plan, plan_files, read_lines
from tokscore.rendering.reading.records import Records, error_place
from tokscore.rendering.recorded_ids.attribute import Recorded, branch_items
from tokscore.rendering.recorded_ids.branch import RecordedBranch
from tokscore.rendering.templates.limits import DEFAULT_LIMITS, TemplateLimits
from tokscore.rendering.templates.render import uses_date

if TYPE_CHECKING:
    from tokscore.rendering.attribution.renderer import Renderer, Verify

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
        settings: dict[str, Setting],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,  # Any: JSON values
        length_limit: LengthLimit | None = None,
        records: Records | None = None,
    ) -> None:
        self.plan = plan
        self._records = Records(plan) if records is None else records
        self.renderer = renderer
        self._tools = tools
        self.length_limit = length_limit
        self.inputs: Sequence[InputFile] = plan.inputs
        self.parts: Sequence[Part] = plan.parts
        self.n_conversations = plan.n_records
        self.tokenizer = renderer.tokenizer.identity()
        self.settings = settings

    def parse(self, line: Line, part: Part) -> list[Conversation | RecordedBranch]:
        """The branches in one line, with the tools of the run if it carries none.

        Raises:
            ConversationError: The record cannot be used.
        """
        found = self._records.read(line, part)
        if found.tools is None:
            found = replace(found, tools=self._tools)
        is_served = self._records.format.is_served
        if isinstance(found, Conversation):
            return [replace(found, is_served=is_served)]
        return list(branch_items(found, self.renderer.tokenizer, is_served=is_served))

    def read(self, part: Part) -> Iterator[RenderedConversation | FailedConversation]:
        """Render the lines of one part; the branches of a record follow each other."""
        name = self.inputs[part.file].name
        waiting: deque[_Waiting] = deque()

        def parsed() -> Iterator[Conversation | RecordedBranch | ConversationError]:
            for line in read_lines(self.plan, part):
                items: Sequence[Conversation | RecordedBranch | ConversationError]
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


def _metadata_of(item: Conversation | RecordedBranch | ConversationError) -> str | None:
    if isinstance(item, ConversationError):
        return None
    return item.metadata if isinstance(item, Conversation) else item.conversation.metadata


class DatasetSource:
    """A token dataset that an earlier run wrote."""

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
            InputError: No finished token dataset is there, or the model's tokenizer has another vocabulary.
        """
        self._dataset = Dataset(root, kind=DatasetKind.TOKENS)
        manifest = self._dataset.manifest
        self._check_vocabulary(ChatTokenizer(model, revision=revision, trust_remote_code=trust_remote_code))
        self.inputs: Sequence[InputFile] = [InputFile(root.resolve().name, 0, manifest.plan_hash)]
        self.parts: Sequence[Part] = [
            Part(part.index, 0, i, i + 1, 1) for i, part in enumerate(manifest.parts)
        ]
        self.tokenizer = manifest.tokenizer
        self.settings: dict[str, Setting] = manifest.settings

    @cached_property
    def n_conversations(self) -> int:
        """Records, those that fail included: branches of one have the same id, and stay in one part."""
        return sum(len(self._conversation_ids(part)) for part in self.parts)

    def _conversation_ids(self, part: Part) -> set[str]:
        path = self._dataset.root / "conversations" / part_name(part.index)
        found = pq.read_table(path, columns=["conversation_id"])["conversation_id"].unique().to_pylist()
        return {*found, *(failure.conversation_id for failure in self._dataset.failures(part.index))}

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
                raise InputError(
                    f"{self._dataset.root} was rendered with the tokenizer of "
                    f"{self._dataset.manifest.tokenizer.name}, and {tokenizer.name} has another: "
                    f"id {token_id} is {text!r} there and {texts[1][token_id]!r} here.\n"
                    f"Give the conversations instead, and they are rendered with {tokenizer.name}."
                )

    def vocabulary(self) -> pa.Table:
        """The dataset's."""
        return pq.read_table(self._dataset.root / VOCABULARY_NAME)


def open_source(
    inputs: Sequence[str] | str,
    model: str,
    *,
    template: Path | None = None,
    template_kwargs: Mapping[str, Any] | None = None,  # Any: JSON values
    tools: Sequence[Mapping[str, Any]] | None = None,  # Any: JSON values
    add_generation_prompt: bool = False,
    verify: Verify | None = None,
    length_limit: LengthLimit | None = None,
    template_limits: TemplateLimits = DEFAULT_LIMITS,
    revision: str | None = None,
    part_bytes: int | None = None,
    template_time: str | None = None,
    input_format: str | None = None,
    trust_remote_code: bool = False,
    messages: MessageForm | None = None,
) -> ConversationSource | DatasetSource:
    """The source for what a user named: conversation files, or one token dataset.

    Args:
        inputs: Paths of files, `-`, or one directory with a manifest.
        model: Model directory or hub id whose tokenizer renders the files.
        template: File with a chat template that replaces the tokenizer's own.
        template_kwargs: Variables for the template.
        tools: Tool definitions for records that carry none.
        add_generation_prompt: End every conversation with the opener of the next answer.
        verify: How much to compare with transformers; a sample by default.
        length_limit: Most tokens a conversation may have.
        template_limits: What the template may take for one conversation.
        revision: Of the model, on the hub.
        part_bytes: Input bytes a part.
        template_time: ISO date and time that templates which print the date take for now.
        input_format: One of `formats.FORMATS`; by default found by looking at the first record.
        trust_remote_code: Whether code that comes with the model may run.
        messages: How messages are shown to the template; `auto` by default.

    Raises:
        UsageError: The inputs do not go together.
        InputError: An input or the tokenizer cannot be used.
    """
    inputs = [inputs] if isinstance(inputs, str) else inputs
    datasets = [name for name in inputs if (Path(name) / MANIFEST_NAME).is_file()]
    if datasets:
        if len(inputs) > 1:
            raise UsageError(
                f"{datasets[0]} is a dataset; give it alone, not with {len(inputs) - 1} other inputs."
            )
        rendering = (template, template_kwargs, tools, add_generation_prompt, length_limit, messages)
        if any(rendering):
            raise UsageError(
                f"{datasets[0]} is rendered already; --template, --template-kwargs, --tools, "
                "--add-generation-prompt, --max-tokens and --messages have no effect on it.\n"
                "Leave them out, or give the conversations instead."
            )
        return DatasetSource(
            Path(datasets[0]), model=model, revision=revision, trust_remote_code=trust_remote_code
        )
    from tokscore.rendering.attribution.renderer import Renderer, Verify

    form = MessageForm.AUTO if messages is None else messages
    chosen = Verify.SAMPLE if verify is None else verify
    plan = plan_files(inputs, input_format, part_bytes=PART_BYTES if part_bytes is None else part_bytes)
    records = Records(plan)
    source_template = None if template is None else _read_template(template)
    tokenizer = ChatTokenizer(
        model, revision=revision, template=source_template, trust_remote_code=trust_remote_code
    )
    now = _parse_time(template_time)
    renderer = Renderer(
        tokenizer,
        template_kwargs=template_kwargs,
        add_generation_prompt=add_generation_prompt,
        verify=chosen,
        limits=template_limits,
        now=now,
        messages=form,
    )
    import transformers

    settings: dict[str, Setting] = {
        "template_kwargs": _sorted_json(dict(template_kwargs or {})).decode(),
        "tools_sha256": None if tools is None else hashlib.sha256(_sorted_json(tools)).hexdigest(),
        "max_tokens": None if length_limit is None else length_limit.max_tokens,
        "truncate": None if length_limit is None else length_limit.truncate.value,
        "add_generation_prompt": add_generation_prompt,
        "verify": chosen.value,
        "transformers": transformers.__version__,
        "input_format": records.format.name,
        **({"trust_remote_code": True} if trust_remote_code else {}),
        "messages": form.value,
    }
    if any(uses_date(tokenizer.chat_template(has_tools=has_tools)) for has_tools in (False, True)):
        settings["template_time"] = now.isoformat()
    return ConversationSource(
        plan, renderer, settings, tools=tools, length_limit=length_limit, records=records
    )


def _sorted_json(value: object) -> bytes:
    return msgspec.json.encode(value, order="deterministic")


def _parse_time(text: str | None) -> dt.datetime:
    if text is None:
        return dt.datetime.now().replace(microsecond=0)
    try:
        return dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"the template time is {text!r}; expected a date such as 2026-01-31.") from error


def _read_template(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise UsageError(f"cannot read the template {path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"the template {path} is not UTF-8: byte {error.start} is damaged.") from error
