"""Options made from classes of settings, so that no setting is written down twice."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from tokscore.cli.options.completion import formats
from tokscore.cli.options.shared import option
from tokscore.dataset.errors import UsageError
from tokscore.dataset.settings import Definition, Settings, Usual, definitions

Command = TypeVar("Command", bound=Callable[..., None])


class Only(NamedTuple):
    """Which settings of a class a command takes.

    Attributes:
        names: Those, in the order of the class.
        help: What the help says of some of them instead.
        defaults: What some are where they are not given, instead.
    """

    names: tuple[str, ...]
    help: Mapping[str, str] = {}
    defaults: Mapping[str, object] = {}


class _Taken(NamedTuple):
    kind: type[Settings]
    found: tuple[Definition, ...]


def setting_options(command: Command) -> Command:
    """The command with an option for each setting, where it has a parameter of a class of settings.

    Such a parameter is annotated with the class, or with `Annotated[class, Only(...)]`. Of another dataclass,
    each field is an option, annotated as a parameter of a command is.
    """
    signature = inspect.signature(command, eval_str=True)
    taken: dict[str, _Taken] = {}
    shared: dict[str, type] = {}
    parameters: list[inspect.Parameter] = []
    for each in signature.parameters.values():
        is_picked = get_origin(each.annotation) is Annotated
        kind, *picked = get_args(each.annotation) if is_picked else (each.annotation,)
        if not isinstance(kind, type) or not is_dataclass(kind):
            parameters.append(each.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        if not issubclass(kind, Settings):
            shared[each.name] = kind
            parameters += _fields(kind)
            continue
        only = picked[0] if picked else Only(tuple(found.name for found in definitions(kind)))
        found = tuple(
            each._replace(default=only.defaults.get(each.name, each.default))
            for each in definitions(kind)
            if each.name in only.names
        )
        taken[each.name] = _Taken(kind, found)
        parameters += [_parameter(one, only.help.get(one.name, one.about.help)) for one in found]

    @wraps(command)
    def with_settings(**given: Any) -> None:  # Any: values of options
        for name, (kind, found) in taken.items():
            given[name] = kind(**{one.name: _value(one, given.pop(one.name)) for one in found})
        for name, kind in shared.items():
            given[name] = kind(**{one.name: given.pop(one.name) for one in _fields(kind)})
        command(**given)

    with_settings.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    with_settings.__annotations__ = {}
    return with_settings  # type: ignore[return-value]


def _fields(kind: type) -> list[inspect.Parameter]:
    """The fields of a dataclass as parameters of a command."""
    hints = get_type_hints(kind, include_extras=True)
    keyword = inspect.Parameter.KEYWORD_ONLY
    return [
        inspect.Parameter(each.name, keyword, default=each.default, annotation=hints[each.name])
        for each in fields(kind)
    ]


def _parameter(found: Definition, text: str) -> inspect.Parameter:
    """A setting as typer takes an option."""
    about, default = found.about, found.default
    kind: Any = found.type  # Any: whatever typer turns a text into
    if about.metavar == "FILE":
        kind = Path | None
    elif about.metavar == "JSON":
        kind, default = str | None, None
    elif about.metavar == "NAME=VALUE" or isinstance(default, tuple):
        kind, default = list[str] | None, None
    elif about.choices is not None:
        enum: Any = StrEnum  # Any: mypy wants its members written out
        kind = enum("Choice", {name.upper(): name for name in about.choices()})
        default = kind(default)
    shown: dict[str, Any] = {} if about.shown_default is None else {"show_default": about.shown_default}
    if isinstance(default, Usual):  # typer would make it a number as it is given
        kind, default, shown = int | None, None, {"show_default": str(default)}
    if found.name == "input_format":
        shown["autocompletion"] = formats
    name = f"--{found.name.replace('_', '-')}"
    made = option(name, metavar=about.metavar, min=about.at_least, help=text, **shown)
    return inspect.Parameter(
        found.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, made]
    )


def _value(found: Definition, value: Any) -> Any:  # Any: of an option, and of the setting
    """The setting that the value of its option stands for."""
    if value is None:
        return found.default
    if found.about.metavar == "JSON":
        return _parse_object(found.name, value)
    if found.about.metavar == "NAME=VALUE":
        return parse_arguments(value)
    return value.value if found.about.choices is not None else value


def _parse_object(name: str, text: str) -> dict[str, Any]:  # Any: JSON values
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"`{name}` is not JSON: {error}.") from error
    if not isinstance(value, dict):
        raise UsageError(f'`{name}` is no object; expected one such as {{"enable_thinking": false}}.')
    return value


def parse_arguments(arguments: Sequence[str]) -> dict[str, Any]:  # Any: JSON values
    """NAME=VALUE pairs as a mapping; values that are no JSON are text."""
    found: dict[str, Any] = {}  # Any: JSON values
    for argument in arguments:
        name, equals, value = argument.partition("=")
        # The library's names have underscores, its own command line's have dashes.
        name = name.strip().lstrip("-").replace("-", "_")
        if not equals or not name.isidentifier():
            raise UsageError(f"`engine_arg` is {argument!r}; expected NAME=VALUE, such as max_num_seqs=64.")
        if name in found:
            raise UsageError(f"`engine_arg` {name} is given twice.")
        try:
            found[name] = json.loads(value)
        except (ValueError, RecursionError):
            found[name] = value
    return found
