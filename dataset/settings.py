"""A setting defined once: what Python takes as a keyword and the command line as an option."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar, get_args, get_type_hints

from tokscore.dataset.choices import choose
from tokscore.dataset.errors import UsageError

_KEY = "setting"
# Of the integers of tables.
MAX_INTEGER = 2**63 - 1


class Setting(NamedTuple):
    """Help and limits of a setting, beyond its name, type and default.

    Attributes:
        help: One sentence for users.
        metavar: What the help shows for its value, such as N.
        at_least: Its smallest value.
        above: It must be larger than this.
        choices: All that it may be, where that is no `StrEnum`.
        shown_default: What the help says of the default instead of the value.
    """

    help: str
    metavar: str | None = None
    at_least: int | None = None
    above: float | None = None
    choices: Callable[[], Sequence[str]] | None = None
    shown_default: str | None = None


class Definition(NamedTuple):
    """A setting with its name, type and default."""

    name: str
    type: Any  # Any: of a field, such as `int | None`
    default: Any  # Any: of that type
    about: Setting

    @property
    def enum(self) -> type[StrEnum] | None:
        """The closed set that its values belong to, where it is one."""
        kinds = (self.type, *get_args(self.type))
        return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, StrEnum)), None)

    def check(self, value: Any) -> Any:  # Any: of the field
        """The value, as a member of its closed set if it has one; the default for None.

        Raises:
            UsageError: It is none of those that the setting may have.
        """
        if value is None:
            return self.default
        if isinstance(self.default, tuple):
            return (value,) if isinstance(value, str) else tuple(value)
        if self.enum is not None:
            return choose(self.enum, value, self.name)
        about = self.about
        if about.choices is not None and value not in about.choices():
            raise UsageError(f"`{self.name}` is {value!r}; expected {', '.join(about.choices())}.")
        if about.at_least is not None and not (_is_number(value) and value >= about.at_least):
            raise UsageError(f"`{self.name}` is {value!r}; expected at least {about.at_least}.")
        if about.at_least is not None and isinstance(value, int) and value > MAX_INTEGER:
            raise UsageError(f"`{self.name}` is {value}; expected at most {MAX_INTEGER}.")
        if about.above is not None and not (_is_number(value) and value > about.above):
            raise UsageError(f"`{self.name}` is {value!r}; expected a number above {about.above:g}.")
        return value


_DEFINITIONS: dict[type, tuple[Definition, ...]] = {}


class Usual(int):
    """A default that is no wish: where there are fewer, it stands for as many as there are."""


class Settings:
    """Base of frozen dataclasses of settings; their values are checked where they are made."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for each in definitions(type(self)):
            object.__setattr__(self, each.name, each.check(getattr(self, each.name)))


Kind = TypeVar("Kind", bound=Settings)
Function = TypeVar("Function", bound=Callable[..., Any])  # Any: whatever it returns


def changed(settings: Kind, changes: Mapping[str, Any]) -> Kind:  # Any: values of settings
    """The same with other values.

    Raises:
        UsageError: A setting cannot have its value.
        TypeError: There is no such setting.
    """
    return dataclasses.replace(settings, **changes)  # type: ignore[type-var]  # classes below are dataclasses


def names_given(settings: Settings) -> list[str]:
    """The names of those that are not their defaults."""
    return [each.name for each in definitions(type(settings)) if getattr(settings, each.name) != each.default]


def shows_settings(*kinds: type[Settings]) -> Callable[[Function], Function]:
    """A decorator for functions with `**settings`: `help` and completion show all of these classes."""

    def shown(function: Function) -> Function:
        found = [each for kind in kinds for each in definitions(kind)]
        signature = inspect.signature(function)
        parameters = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        parameters += [
            inspect.Parameter(
                each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=each.type
            )
            for each in found
        ]
        function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        texts = "".join(f"    {each.name}: {each.about.help}\n" for each in found)
        function.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\nSettings:\n{texts}"
        return function

    return shown


def setting(default: Any, text: str, **about: Any) -> Any:  # Any: as `dataclasses.field` is typed
    """A field of `Settings`: its default and what `Setting` says of it."""
    made = Setting(text, **about)
    if isinstance(default, dict):
        return dataclasses.field(default_factory=default.copy, metadata={_KEY: made})
    return dataclasses.field(default=default, metadata={_KEY: made})


def definitions(kind: type[Settings]) -> tuple[Definition, ...]:
    """The settings of a class, in order."""
    if kind not in _DEFINITIONS:
        types = get_type_hints(kind)
        _DEFINITIONS[kind] = tuple(
            Definition(each.name, types[each.name], _default(each), each.metadata[_KEY])
            for each in dataclasses.fields(kind)  # type: ignore[arg-type]  # those of classes below
        )
    return _DEFINITIONS[kind]


def _default(field: dataclasses.Field[Any]) -> Any:  # Any: of whatever type the field is
    make = field.default_factory
    return field.default if make is dataclasses.MISSING else make()


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
