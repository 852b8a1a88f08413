"""Where tokens come from: conversation files rendered on the way, or a token dataset."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tokscore.rendering.conversations import parse_conversation
from tokscore.rendering.dataset import VOCABULARY_NAME, Dataset
from tokscore.rendering.errors import ConversationError, InputError, UsageError
from tokscore.rendering.manifest import MANIFEST_NAME, InputFile, Part, Setting, TokenizerIdentity
from tokscore.rendering.plan import Line, Plan, plan_files, read_lines
from tokscore.rendering.rendered import ConversationRow, FailedConversation, RenderedConversation
from tokscore.rendering.tables import DatasetKind
from tokscore.rendering.templates import uses_date
from tokscore.rendering.tokenizer import ChatTokenizer
from tokscore.rendering.vocabulary import vocabulary_table

if TYPE_CHECKING:
    from tokscore.rendering.renderer import Renderer, Verify

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
        """How many conversations all parts hold, those that fail included."""
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

    def __init__(self, plan: Plan, renderer: Renderer, settings: dict[str, Setting]) -> None:
        self.plan = plan
        self._renderer = renderer
        self.inputs: Sequence[InputFile] = plan.inputs
        self.parts: Sequence[Part] = plan.parts
        self.n_conversations = plan.n_records
        self.tokenizer = renderer.tokenizer.identity()
        self.settings = settings

    def read(self, part: Part) -> Iterator[RenderedConversation | FailedConversation]:
        """Render the lines of one part."""
        for number, line in enumerate(read_lines(self.plan, part)):
            yield self._render(part, line, number)

    def _render(self, part: Part, line: Line, number: int) -> RenderedConversation | FailedConversation:
        name = self.inputs[part.file].name
        try:
            conversation = parse_conversation(line.content)
            tokens = self._renderer.render(conversation, number=number)
        except ConversationError as error:
            return FailedConversation(
                line.conversation_id, name, line.number, error.path, error.reason, error.hint
            )
        status = UNTRACKED_STATUS if tokens.n_untracked_characters else "ok"
        row = ConversationRow(line.conversation_id, 0, name, line.number, status, conversation.metadata)
        return RenderedConversation(row, tokens)

    def vocabulary(self) -> pa.Table:
        """The tokenizer's."""
        return vocabulary_table(self._renderer.tokenizer)


class DatasetSource:
    """A token dataset that an earlier run wrote."""

    def __init__(self, root: Path, *, model: str, revision: str | None = None) -> None:
        """Open it, and check that its ids mean the same to `model`.

        Args:
            root: The dataset.
            model: Model directory or hub id that will score it.
            revision: Of the model, on the hub.

        Raises:
            InputError: No finished token dataset is there, or the model's tokenizer has another vocabulary.
        """
        self._dataset = Dataset(root, kind=DatasetKind.TOKENS)
        manifest = self._dataset.manifest
        self._check_vocabulary(model, revision)
        self.inputs: Sequence[InputFile] = [InputFile(root.resolve().name, 0, manifest.plan_hash)]
        self.parts: Sequence[Part] = [
            Part(part.index, 0, i, i + 1, 1) for i, part in enumerate(manifest.parts)
        ]
        self.tokenizer = manifest.tokenizer
        self.settings: dict[str, Setting] = manifest.settings
        self.n_conversations = self._dataset.n_conversations() + sum(1 for _ in self._dataset.failures())

    def read(self, part: Part) -> Iterator[RenderedConversation | FailedConversation]:
        """The conversations of one part, then what failed when it was rendered."""
        yield from self._dataset.read_part(part.index)
        for failure in self._dataset.failures(part.index):
            yield failure._replace(is_known=True)

    def _check_vocabulary(self, model: str, revision: str | None) -> None:
        tokenizer = ChatTokenizer(model, revision=revision)
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
    add_generation_prompt: bool = False,
    verify: Verify | None = None,
    revision: str | None = None,
    part_bytes: int | None = None,
    template_time: str | None = None,
) -> ConversationSource | DatasetSource:
    """The source for what a user named: conversation files, or one token dataset.

    Args:
        inputs: Paths of files, `-`, or one directory with a manifest.
        model: Model directory or hub id whose tokenizer renders the files.
        template: File with a chat template that replaces the tokenizer's own.
        template_kwargs: Variables for the template.
        add_generation_prompt: End every conversation with the opener of the next answer.
        verify: How much to compare with transformers; a sample by default.
        revision: Of the model, on the hub.
        part_bytes: Input bytes a part.
        template_time: ISO date and time that templates which print the date take for now.

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
        if template is not None or template_kwargs or add_generation_prompt:
            raise UsageError(
                f"{datasets[0]} is rendered already; --template, --template-kwargs and "
                "--add-generation-prompt have no effect on it.\n"
                "Leave them out, or give the conversations instead."
            )
        return DatasetSource(Path(datasets[0]), model=model, revision=revision)
    from tokscore.rendering.renderer import Renderer, Verify

    chosen = Verify.SAMPLE if verify is None else verify
    plan = plan_files(inputs) if part_bytes is None else plan_files(inputs, part_bytes=part_bytes)
    source_template = None if template is None else _read_template(template)
    tokenizer = ChatTokenizer(model, revision=revision, template=source_template)
    now = _parse_time(template_time)
    renderer = Renderer(
        tokenizer,
        template_kwargs=template_kwargs,
        add_generation_prompt=add_generation_prompt,
        verify=chosen,
        now=now,
    )
    import transformers

    settings: dict[str, Setting] = {
        "template_kwargs": msgspec.json.encode(dict(template_kwargs or {}), order="deterministic").decode(),
        "add_generation_prompt": add_generation_prompt,
        "verify": chosen.value,
        "transformers": transformers.__version__,
    }
    if any(uses_date(tokenizer.chat_template(has_tools=has_tools)) for has_tools in (False, True)):
        settings["template_time"] = now.isoformat()
    return ConversationSource(plan, renderer, settings)


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
