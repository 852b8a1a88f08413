"""What a caller named as input: files, patterns, records or a dataset, opened as one source of tokens."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from tokscore.dataset.choices import choose
from tokscore.dataset.errors import InputError, UsageError
from tokscore.dataset.files import PathName, path_name, temporary_folder
from tokscore.dataset.manifest import read_manifest
from tokscore.rendering.attribution.length import LengthLimit, Truncate
from tokscore.rendering.conversations.conversation import RESERVED_KWARGS
from tokscore.rendering.messages.forms import MessageForm
from tokscore.rendering.source import ConversationSource, DatasetSource, open_source
from tokscore.rendering.templates.limits import DEFAULT_LIMITS, TemplateLimits

Record = Mapping[str, Any]  # Any: JSON values
Inputs = PathName | Record | Iterable[PathName] | Iterable[Record]

RECORDS_NAME = "records.jsonl"
_SHOWN_RENAMED = 3


def expand_patterns(inputs: Iterable[str]) -> list[str]:
    """The inputs with each pattern replaced by the files it matches, in order of their names.

    Raises:
        InputError: A pattern matches no file.
    """
    found: list[str] = []
    for name in inputs:
        if not glob.has_magic(name) or Path(name).exists():
            found.append(name)
            continue
        files = sorted(path for path in glob.glob(name, recursive=True) if Path(path).is_file())  # noqa: PTH207
        if not files:
            raise InputError(f"{name} matches no file; expected files of conversations.")
        found += files
    return found


def input_names(inputs: Inputs) -> list[str]:
    """The inputs as `open_inputs` takes them; records go to a file that is deleted when the process ends.

    Raises:
        UsageError: There is nothing, or paths and records are mixed, or a record is no JSON.
        InputError: A pattern matches no file.
    """
    if isinstance(inputs, str | os.PathLike):
        return expand_patterns([path_name(inputs)])
    if isinstance(inputs, Mapping):
        return [str(_write_records([inputs]))]
    given = iter(inputs)
    first = next(given, None)
    if first is None:
        raise UsageError("there are no conversations; expected paths, patterns, a dataset or records.")
    every = chain([first], given)
    if isinstance(first, str | os.PathLike):
        return expand_patterns([path_name(_checked_path(name)) for name in every])
    return [str(_write_records(every))]


def _checked_path(value: object) -> PathName:
    if isinstance(value, str | os.PathLike):
        return value
    raise UsageError(
        f"there is {type(value).__name__} among the paths; expected paths alone or records alone."
    )


def _write_records(records: Iterable[object]) -> Path:
    path = temporary_folder() / RECORDS_NAME
    with path.open("w", encoding="utf-8") as file:
        for number, record in enumerate(records, 1):
            if not isinstance(record, Mapping):
                raise UsageError(
                    f"record {number} is {type(record).__name__}; expected a mapping such as "
                    '{"messages": [{"role": "user", "content": "Hi"}]}.'
                )
            try:
                file.write(json.dumps(dict(record), default=_plain) + "\n")
            except (TypeError, ValueError, RecursionError) as error:
                raise UsageError(f"record {number} cannot be written as JSON: {error}.") from error
    return path


def _plain(value: object) -> object:
    """What JSON has for a value it does not know: numbers and lists for those of numpy."""
    if isinstance(value, Mapping):
        return dict(value)
    as_list = getattr(value, "tolist", None)
    if as_list is None:
        raise TypeError(f"it holds {type(value).__name__}")
    plain: object = as_list()
    return plain


def open_inputs(
    inputs: Sequence[str],
    model: str,
    *,
    out: Path | None = None,
    template: PathName | None = None,
    template_kwargs: Mapping[str, Any] | None = None,  # Any: JSON values
    tools: Sequence[Mapping[str, Any]] | PathName | None = None,  # Any: JSON values
    add_generation_prompt: bool = False,
    max_tokens: int | None = None,
    truncate: str | None = None,
    verify: str = "sample",
    template_timeout: float = DEFAULT_LIMITS.cpu_s,
    template_characters: int = DEFAULT_LIMITS.n_characters,
    revision: str | None = None,
    template_time: str | None = None,
    input_format: str | None = None,
    trust_remote_code: bool = False,
    messages: str | None = None,
) -> ConversationSource | DatasetSource:
    """The token source for inputs and the settings of the options of the same names.

    Args:
        inputs: As `input_names` gives them.
        model: Model directory or hub id whose tokenizer renders.
        out: Where the result will be written; an earlier run there decides what templates take for now.
        template: File with a chat template that replaces the tokenizer's own.
        template_kwargs: Variables for the template.
        tools: Tool definitions for records that carry none, or a JSON file of them.
        add_generation_prompt: End every conversation with the opener of the next answer.
        max_tokens: Most tokens a conversation may have.
        truncate: What happens to longer ones, a member of `Truncate`.
        verify: How much to compare with transformers.
        template_timeout: Processor seconds that the template may take for one conversation.
        template_characters: Characters that it may build for one, beyond 50 times its length.
        revision: Of the model, on the hub.
        template_time: ISO date and time that templates which print the date take for now.
        input_format: One of `formats.FORMATS`; by default found by looking at the first record.
        trust_remote_code: Whether code that comes with the model may run.
        messages: How messages are shown to the template, a member of `MessageForm`; `auto` by default.

    Raises:
        UsageError: Settings that do not fit each other or the inputs.
        InputError: An input, the tokenizer or the template cannot be used.
    """
    from tokscore.rendering.attribution.renderer import Verify

    if truncate is not None and max_tokens is None:
        raise UsageError("--truncate needs a length: give --max-tokens N as well.")
    if max_tokens is not None and max_tokens < 1:
        raise UsageError(f"--max-tokens is {max_tokens}; expected at least 1.")
    for name in sorted(RESERVED_KWARGS & set(template_kwargs or ())):
        raise UsageError(
            f"--template-kwargs holds {name}, which transformers takes itself; it is no variable."
        )
    behaviour = choose(Truncate, truncate or Truncate.ERROR, "--truncate")
    return open_source(
        inputs,
        model,
        template=None if template is None else Path(path_name(template)),
        template_kwargs=template_kwargs,
        tools=read_tools(tools) if isinstance(tools, str | os.PathLike) else tools,
        add_generation_prompt=add_generation_prompt,
        verify=choose(Verify, verify, "--verify"),
        length_limit=None if max_tokens is None else LengthLimit(max_tokens, behaviour),
        template_limits=TemplateLimits(template_timeout, template_characters),
        revision=revision,
        template_time=template_time or _template_time_of(out),
        input_format=input_format,
        trust_remote_code=trust_remote_code,
        messages=None if messages is None else choose(MessageForm, messages, "--messages"),
    )


def _template_time_of(out: Path | None) -> str | None:
    """The time that an earlier run into `out` took for now: what is resumed must not change with the day."""
    if out is None:
        return None
    try:
        time = read_manifest(out).settings.get("template_time")
    except InputError:
        return None
    return time if isinstance(time, str) else None


def read_tools(path: PathName) -> list[dict[str, Any]]:  # Any: JSON values
    """The tool definitions in a JSON file.

    Raises:
        UsageError: It cannot be read, or holds something else.
    """
    name = path_name(path)
    try:
        tools = json.loads(Path(name).read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read the tools in {name}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"the tools in {name} are not UTF-8: byte {error.start} is damaged.") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--tools {name} is not JSON: {error}.") from error
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise UsageError(f"--tools {name} is no list of objects; expected the tools of an OpenAI request.")
    return tools


def warnings_about(source: ConversationSource | DatasetSource) -> Iterator[str]:
    """Lines that the user should see before a run."""
    renamed = source.plan.renamed if isinstance(source, ConversationSource) else ()
    if renamed:
        shown = ", ".join(f"{wanted} is now {unique}" for wanted, unique in renamed[:_SHOWN_RENAMED])
        more = f", and {len(renamed) - _SHOWN_RENAMED} more" if len(renamed) > _SHOWN_RENAMED else ""
        noun = "conversation" if len(renamed) == 1 else "conversations"
        yield f"warning: {len(renamed):,} {noun} had an id that was taken: {shown}{more}."
