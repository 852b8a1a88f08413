"""What a caller named as input: files, patterns, records or a dataset, opened as one source of tokens."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Unpack

from tokscore.dataset.errors import InputError, UsageError, counted
from tokscore.dataset.files import PathName, location, path_name, temporary_folder
from tokscore.dataset.manifest import MANIFEST_NAME, read_manifest
from tokscore.dataset.settings import changed, names_given
from tokscore.dataset.stores.path import StorePath, is_store, matching
from tokscore.dataset.stores.urls import WEB
from tokscore.rendering.attribution.settings import RenderKeywords, RenderSettings
from tokscore.rendering.attribution.tokenizer import ChatTokenizer
from tokscore.rendering.conversations.conversation import RESERVED_KWARGS
from tokscore.rendering.conversations.record_line import record_line
from tokscore.rendering.reading.formats.mapped import given_format
from tokscore.rendering.reading.formats.text import NAME as TEXT
from tokscore.rendering.reading.plan import PART_BYTES, plan_files
from tokscore.rendering.reading.records import Records
from tokscore.rendering.source import ConversationSource, DatasetSource

Record = Mapping[str, Any]  # Any: JSON values
Inputs = PathName | Record | Iterable[PathName] | Iterable[Record]

RECORDS_NAME = "records.jsonl"
_OF_TEMPLATES = ("template", "template_kwargs", "tools", "add_generation_prompt", "messages")
_OF_TEXT = ("chunk", "stride", "context")
_MAKING_TOKENS = (*_OF_TEMPLATES, "max_tokens", *_OF_TEXT)
_SHOWN_RENAMED = 3


def expand_patterns(inputs: Iterable[str]) -> list[str]:
    """The inputs with each pattern replaced by the files it matches, in order of their names.

    Raises:
        InputError: A pattern matches no file.
    """
    found: list[str] = []
    for name in inputs:
        if is_store(location(name)):
            found += _urls(name)
            continue
        if not glob.has_magic(name) or Path(name).exists():
            found.append(name)
            continue
        files = sorted(path for path in glob.glob(name, recursive=True) if Path(path).is_file())  # noqa: PTH207
        if not files:
            raise InputError(f"{name} matches no file; expected files of conversations.")
        found += files
    return found


def _urls(name: str) -> list[str]:
    """The URL, or those that it matches; the query of a web server is no pattern."""
    place = location(name)
    if isinstance(place, StorePath) and place.scheme in WEB:
        if not glob.has_magic(place.url.partition("?")[0]):
            return [name]
    elif not glob.has_magic(name) or place.exists():
        return [name]
    found = matching(name)
    if not found:
        raise InputError(f"{place} matches no file; expected files of conversations.")
    return found


def is_dataset(name: PathName) -> bool:
    """Whether a dataset lies there; files of a web server have a dot in their names."""
    place = location(name)
    is_web_file = isinstance(place, StorePath) and place.scheme in WEB and "." in place.name
    return not is_web_file and (place / MANIFEST_NAME).is_file()


def input_names(inputs: Inputs) -> list[str]:
    """Paths of all that is named; records go to a file that is deleted when the process ends.

    Raises:
        UsageError: There is nothing, or paths and records are mixed, or a record is no JSON.
        InputError: A pattern matches no file.
    """
    if isinstance(inputs, str | os.PathLike):
        return expand_patterns([path_name(inputs)])
    if isinstance(inputs, Mapping):
        return [str(_write_records([inputs]))]
    if not isinstance(inputs, Iterable):
        raise UsageError(
            f"the input is {type(inputs).__name__}; expected a path, a dataset, a record, or a list of these."
        )
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
            file.write(record_line(record, f"record {number}") + "\n")
    return path


def open_source(
    inputs: Inputs,
    model: str,
    settings: RenderSettings | None = None,
    *,
    out: Path | None = None,
    part_bytes: int = PART_BYTES,
    **changes: Unpack[RenderKeywords],
) -> ConversationSource | DatasetSource:
    """The source for what a user named: conversations, or one token dataset.

    Args:
        inputs: Paths or patterns, `-` for standard input, records, or one directory with a manifest.
        model: Model directory or hub id whose tokenizer renders.
        settings: What rendering is told; its choice by default.
        out: Where the result will be written; an earlier run there decides what templates take for now.
        part_bytes: Input bytes a part.
        **changes: Single settings, instead of those in `settings`.

    Raises:
        UsageError: Settings that do not fit each other or the inputs.
        InputError: An input, the tokenizer or the template cannot be used.
    """
    settings = changed(settings or RenderSettings(), changes)
    names = input_names(inputs)
    for name in sorted(RESERVED_KWARGS & set(settings.template_kwargs)):
        raise UsageError(
            f"`template_kwargs` holds {name}, which transformers takes itself; it is no variable."
        )
    datasets = [name for name in names if is_dataset(name)]
    if datasets:
        _check_alone(datasets[0], len(names) - 1, settings)
        return DatasetSource(
            location(datasets[0]),
            model=model,
            revision=settings.revision,
            trust_remote_code=settings.trust_remote_code,
        )
    from tokscore.rendering.attribution.renderer import Renderer

    tools = read_tools(settings.tools) if isinstance(settings.tools, str | os.PathLike) else settings.tools
    chosen = given_format(settings.input_format, settings.map)
    plan = plan_files(names, chosen, part_bytes=part_bytes)
    _check_kind(plan.format.name, settings)
    template_time = settings.template_time or _template_time_of(out)
    is_text = plan.format.name == TEXT
    renderer = Renderer(
        _plain_tokenizer(model, settings) if is_text else model, settings, template_time=template_time
    )
    return ConversationSource(plan, renderer, tools=tools, records=Records(plan))


def _check_alone(dataset: str, n_others: int, settings: RenderSettings) -> None:
    """Refuse what has no meaning beside a dataset, whose tokens are there already."""
    if n_others:
        others = counted(n_others, "other input")
        raise UsageError(f"{dataset} is a dataset; give it alone, not with {others}.")
    unused = _given(settings, _MAKING_TOKENS)
    if unused:
        raise UsageError(
            f"{dataset} is rendered already; {' and '.join(unused)} cannot change it.\n"
            "Leave them out, or give the conversations instead."
        )


def _check_kind(input_format: str, settings: RenderSettings) -> None:
    """Refuse settings of templates for text, and those of text for conversations."""
    is_text = input_format == TEXT
    unused = _given(settings, _OF_TEMPLATES if is_text else _OF_TEXT)
    if not unused:
        return
    names = " and ".join(unused)
    if is_text:
        raise UsageError(
            f"{names} cannot change plain text, which is tokenised without a template. Leave them out."
        )
    raise UsageError(
        f"{names} cannot cut conversations, and the input has the format {input_format}. Leave them out, or "
        f"give `input_format='{TEXT}'`."
    )


def _given(settings: RenderSettings, names: Sequence[str]) -> list[str]:
    """Those of the settings that are not their defaults, as messages call them."""
    return [f"`{name}`" for name in names_given(settings) if name in names]


def _plain_tokenizer(model: str, settings: RenderSettings) -> ChatTokenizer:
    """The tokenizer of a model, which needs no template for plain text."""
    tokenizer = ChatTokenizer(
        model,
        revision=settings.revision,
        template="",
        trust_remote_code=settings.trust_remote_code,
        library=settings.tokenizer,
    )
    n_opening = len(tokenizer.opening_ids)
    if settings.chunk is not None and settings.chunk <= n_opening:
        raise UsageError(
            f"`chunk` is {settings.chunk}; expected more than the {n_opening} tokens that {tokenizer.name} "
            "puts before every text."
        )
    return tokenizer


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
    name = location(path)
    try:
        tools = json.loads(name.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read the tools in {name}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"the tools in {name} are not UTF-8: byte {error.start} is damaged.") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"`tools` {name} is not JSON: {error}.") from error
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise UsageError(f"`tools` {name} is no list of objects; expected the tools of an OpenAI request.")
    return tools


def warnings_about(source: ConversationSource | DatasetSource) -> Iterator[str]:
    """Lines that the user should see before a run."""
    renamed = source.plan.renamed if isinstance(source, ConversationSource) else ()
    if renamed:
        shown = ", ".join(f"{wanted} is now {unique}" for wanted, unique in renamed[:_SHOWN_RENAMED])
        more = f", and {len(renamed) - _SHOWN_RENAMED} more" if len(renamed) > _SHOWN_RENAMED else ""
        yield f"warning: {counted(len(renamed), 'conversation')} had an id that was taken: {shown}{more}."
