"""Where tokens come from: conversation files rendered on the way, or a token dataset."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tokscore.rendering.batches import render_many
from tokscore.rendering.conversations import Conversation, parse_conversation
from tokscore.rendering.dataset import VOCABULARY_NAME, Dataset
from tokscore.rendering.errors import ConversationError, UsageError
from tokscore.rendering.manifest import MANIFEST_NAME, InputFile, Part, Setting, TokenizerIdentity
from tokscore.rendering.plan import Line, Plan, plan_files, read_lines
from tokscore.rendering.rendered import ConversationRow, FailedConversation, RenderedConversation
from tokscore.rendering.tables import DatasetKind
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
        name = self.inputs[part.file].name
        waiting: deque[tuple[Line, str | None]] = deque()

        def parsed() -> Iterator[Conversation | ConversationError]:
            for line in read_lines(self.plan, part):
                try:
                    item: Conversation | ConversationError = parse_conversation(line.content)
                except ConversationError as error:
                    item = error
                metadata = item.metadata if isinstance(item, Conversation) else None
                waiting.append((line._replace(content=b""), metadata))
                yield item

        for rendered in render_many(self._renderer, parsed(), first_number=part.first_line - 1):
            line, metadata = waiting.popleft()
            if isinstance(rendered, ConversationError):
                yield FailedConversation(
                    line.conversation_id, name, line.number, rendered.path, rendered.reason, rendered.hint
                )
                continue
            status = UNTRACKED_STATUS if rendered.n_untracked_characters else "ok"
            row = ConversationRow(line.conversation_id, 0, name, line.number, status, metadata)
            yield RenderedConversation(row, rendered)

    def vocabulary(self) -> pa.Table:
        """The tokenizer's."""
        return vocabulary_table(self._renderer.tokenizer)


class DatasetSource:
    """A token dataset that an earlier run wrote."""

    def __init__(self, root: Path) -> None:
        """Open it.

        Raises:
            InputError: No finished token dataset is there.
        """
        self._dataset = Dataset(root, kind=DatasetKind.TOKENS)
        manifest = self._dataset.manifest
        self.inputs: Sequence[InputFile] = [InputFile(root.resolve().name, 0, manifest.plan_hash)]
        self.parts: Sequence[Part] = [
            Part(part.index, 0, i, i + 1, 1) for i, part in enumerate(manifest.parts)
        ]
        self.tokenizer = manifest.tokenizer
        self.settings: dict[str, Setting] = manifest.settings
        rows = sum(pq.read_metadata(path).num_rows for path in self._dataset.files("conversations"))
        self.n_conversations = rows + sum(1 for _ in self._dataset.failures())

    def read(self, part: Part) -> Iterator[RenderedConversation | FailedConversation]:
        """The conversations of one part, then what failed when it was rendered."""
        yield from self._dataset.read_part(part.index)
        for failure in self._dataset.failures(part.index):
            yield failure._replace(is_known=True)

    def vocabulary(self) -> pa.Table:
        """The dataset's."""
        return pq.read_table(self._dataset.root / VOCABULARY_NAME)


def open_source(
    inputs: Sequence[str],
    model: str,
    *,
    template: Path | None = None,
    template_kwargs: Mapping[str, Any] | None = None,  # Any: JSON values
    add_generation_prompt: bool = False,
    verify: Verify | None = None,
    revision: str | None = None,
    part_bytes: int | None = None,
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

    Raises:
        UsageError: The inputs do not go together.
        InputError: An input or the tokenizer cannot be used.
    """
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
        return DatasetSource(Path(datasets[0]))
    from tokscore.rendering.renderer import Renderer, Verify

    chosen = Verify.SAMPLE if verify is None else verify
    plan = plan_files(inputs) if part_bytes is None else plan_files(inputs, part_bytes=part_bytes)
    source_template = None if template is None else _read_template(template)
    tokenizer = ChatTokenizer(model, revision=revision, template=source_template)
    renderer = Renderer(
        tokenizer, template_kwargs=template_kwargs, add_generation_prompt=add_generation_prompt, verify=chosen
    )
    import transformers

    settings: dict[str, Setting] = {
        "template_kwargs": msgspec.json.encode(dict(template_kwargs or {}), order="deterministic").decode(),
        "add_generation_prompt": add_generation_prompt,
        "verify": chosen.value,
        "transformers": transformers.__version__,
    }
    return ConversationSource(plan, renderer, settings)


def _read_template(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise UsageError(f"cannot read the template {path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"the template {path} is not UTF-8: byte {error.start} is damaged.") from error
