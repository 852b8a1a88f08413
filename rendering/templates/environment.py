"""The sandbox that chat templates run in; it keeps the origin of everything they print."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.filters import make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter

from tokscore.rendering.templates.compiler import TrackingGenerator
from tokscore.rendering.templates.cost import (
    FROM_THE_COMPILER,
    check_format,
    check_method,
    check_operands,
    check_search,
)
from tokscore.rendering.templates.functions import (
    format_tracked,
    guarded_filter,
    guarded_test,
    indent_lines,
    raise_exception,
    refuse_chance,
    same_as,
    strftime_now,
    title,
)
from tokscore.rendering.templates.json import dumps
from tokscore.rendering.templates.limits import read, step, take, take_result, weigh
from tokscore.rendering.templates.markup import SafeStr, escaped, forced, safe, unmarked
from tokscore.rendering.templates.strings import (
    UNMARKED_TYPES,
    TrackedStr,
    concat,
    literal,
    origin_of,
    plain,
    track,
    untracked,
)
from tokscore.rendering.templates.values import TrackedBool, TrackedDict, TrackedList


class _Generation(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}`: marks what a model generated."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

    def _mark(self, caller: Callable[[], str]) -> TrackedStr:
        text = track(caller())
        return TrackedStr(plain(text), tuple(run._replace(generated=True) for run in text._runs))


class TemplateDict:
    """The `dict` global, without the attributes of the class."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:  # Any: template values
        """`dict`."""
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:  # Any: template values
        """`dict.fromkeys`."""
        return dict.fromkeys(*args, **kwargs)


class TemplateNamespace(jinja2.utils.Namespace):
    """The `namespace` global; refuses names that start with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # Any: template values
        self, values = args[0], dict(*args[1:], **kwargs)
        for name in values:
            _check_namespace_name(name)
        jinja2.utils.Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:  # Any: template values
        _check_namespace_name(name)
        super().__setitem__(name, value)


def _check_namespace_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(
            f"a namespace cannot hold {name!r}: it starts with an underscore"
        )


_USUAL_TYPES = frozenset({TrackedStr, TrackedDict, TrackedList, LoopContext, TemplateNamespace})
_KNOWN_ATTRIBUTES = 4096
_COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {  # Any: template values
    "eq": operator.eq,
    "ne": operator.ne,
    "gt": operator.gt,
    "gteq": operator.ge,
    "lt": operator.lt,
    "lteq": operator.le,
    "in": lambda left, right: left in right,
    "notin": lambda left, right: left not in right,
}
_DICT_ATTRIBUTES = frozenset(dir(dict))
# Those that the sandbox gives as they are.
_STRING_METHODS = frozenset(
    name for name in dir(str) if not name.startswith("_") and name not in ("format", "format_map")
)
_LIST_SEARCHES = frozenset({"count", "index"})
_LOOP_NUMBERS = frozenset({"index", "index0", "first", "last", "length"})


class TrackingEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox in which templates run, with the names transformers gives them."""

    code_generator_class = TrackingGenerator
    intercepted_binops = frozenset({"-", "*", "/", "//", "**", "%"})
    concat = staticmethod(concat)
    step = staticmethod(step)

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, jinja2.ext.loopcontrols],
            cache_size=0,
            optimized=False,  # what is folded at compile time would escape the limits
        )
        self.literals: dict[str, TrackedStr] = {}
        self._safe: dict[tuple[type, str], bool] = {}
        self.globals |= {
            "raise_exception": raise_exception,
            "strftime_now": strftime_now,
            "dict": TemplateDict(),
            "namespace": TemplateNamespace,
            "lipsum": refuse_chance,
        }
        self.filters |= {
            "tojson": dumps,
            "join": self._join,
            "string": track,
            "trim": lambda value, chars=None: track(value).strip(chars),
            "upper": lambda value: track(value).upper(),
            "lower": lambda value: track(value).lower(),
            "capitalize": lambda value: track(value).capitalize(),
            "replace": lambda s, old, new, count=None: unmarked(track(s)).replace(
                unmarked(track(old)), unmarked(track(new)), -1 if count is None else count
            ),
            "title": title,
            "indent": indent_lines,
            "safe": safe,
            "escape": escaped,
            "e": escaped,
            "forceescape": forced,
            "sum": self._sum,
            "random": refuse_chance,
        }
        for name, apply in self.filters.items():
            if apply.__name__ == "<lambda>":
                apply.__qualname__ = name  # Python's errors show it
        self.filters = {name: guarded_filter(name, apply) for name, apply in self.filters.items()}
        self.tests |= {
            "boolean": lambda value: isinstance(value, (bool, TrackedBool)),
            "true": lambda value: value is True or (isinstance(value, TrackedBool) and bool(value)),
            "false": lambda value: value is False or (isinstance(value, TrackedBool) and not value),
            "integer": lambda value: isinstance(value, int) and not isinstance(value, (bool, TrackedBool)),
            "sameas": same_as,
        }
        self.tests = {name: guarded_test(name, apply) for name, apply in self.tests.items()}

    @staticmethod
    def emit(value: object, variables: Sequence[object], *, in_macro: bool = False) -> TrackedStr:
        """The text of an output statement, with the message that wrote it.

        Args:
            value: The value of the expression.
            variables: Loop variables around the statement, outermost first.
            in_macro: It prints into what a macro returns; who prints that decides, unless a loop does.
        """
        text = value if type(value) is TrackedStr else track(value)
        runs = text._runs
        if not runs:
            return text
        take(len(text))
        writer = _writer_of(variables)
        if writer is None and not in_macro:
            messages = {run.origin.message for run in runs if run.origin is not None} - {None}
            writer = messages.pop() if len(messages) == 1 else None
        if writer is None:
            return text
        return TrackedStr(text, tuple([run if run.writer is not None else run.by(writer) for run in runs]))

    @classmethod
    def emit_in_macro(cls, value: object, variables: Sequence[object]) -> TrackedStr:
        """The same within a macro."""
        return cls.emit(value, variables, in_macro=True)

    @classmethod
    def emit_stored(cls, value: object, variables: Sequence[object]) -> TrackedStr:
        """The same for a stored value: where loops collected its text, the rest of it is of no message."""
        if (
            not variables
            and isinstance(value, TrackedStr)
            and any(run.writer is not None for run in value._runs)
        ):
            take(len(value))
            return value
        return cls.emit(value, variables)

    @classmethod
    def collected(cls, value: Any, before: Any, variables: Sequence[object]) -> Any:  # Any: template values
        """A value that a loop assigns to a namespace, with the message that wrote what is new in it.

        Args:
            value: The new value, which the expression made of the one before.
            before: The value before.
            variables: Loop variables around the statement, outermost first.
        """
        if isinstance(value, list):
            n = len(before) if isinstance(before, list) else 0
            return [*value[:n], *(cls.collected(item, "", variables) for item in value[n:])]
        if not isinstance(value, TrackedStr) or not isinstance(before, str):
            return value
        writer = _writer_of(variables)
        if writer is None:
            return value
        low, high = 0, len(value)
        if before and value.startswith(before):
            low = len(before)
        elif before and value.endswith(before):
            high -= len(before)
        runs, position = [], 0
        for run in value._runs:
            is_new = low <= position < high and run.writer is None
            runs.append(run.by(writer) if is_new else run)
            position += run.length
        return TrackedStr(value, tuple(runs))

    @staticmethod
    def sliced(value: Any) -> Any:  # Any: template values
        """A slice, counted."""
        take_result(value)
        return value

    @staticmethod
    def compare(left: Any, name: str, right: Any) -> Any:  # Any: template values
        """A comparison by the operator `name`, within the limits."""
        if isinstance(left, (list, tuple, dict)):
            weigh(left)  # comparing containers costs what they would print
        elif type(left) is not int:
            read(left, right)
        if name in ("in", "notin"):
            check_search(left, right)
        return _COMPARISONS[name](left, right)

    @classmethod
    def compare_chain(cls, left: Any, *rest: Any) -> Any:  # Any: template values
        """A chain of comparisons, such as `a < b < c`.

        Args:
            left: The first value.
            rest: Names of operators, each before a function that gives the value on its right.
        """
        result: Any = True
        for name, right_of in zip(rest[::2], rest[1::2], strict=True):
            right = right_of()
            result = cls.compare(left, name, right)
            if not result:
                return result
            left = right
        return result

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:  # Any: as in jinja2
        """Call what a template calls, within its limits."""
        step()
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, (str, int)):
            name = getattr(obj, "__name__", "")
            check_method(owner, name, args, kwargs)
            read(owner, *args)
            if name == "join" and not isinstance(owner, TrackedStr):
                obj = track(owner).join
            if type(owner) is TrackedStr and name in _STRING_METHODS:
                named = {key: value for key, value in kwargs.items() if key not in FROM_THE_COMPILER}
                result = obj(*args, **named)
                take_result(result)
                return result
        elif isinstance(owner, (list, tuple, range)) and getattr(obj, "__name__", "") in _LIST_SEARCHES:
            check_search(args[0] if args else None, owner)
        result = super().call(context, obj, *args, **kwargs)
        take_result(result)
        return result

    def add(self, context: Context, operands: Sequence[Any]) -> Any:  # Any: template values
        """The operands of `+` added from left to right, strings all at once."""
        if UNMARKED_TYPES.issuperset(map(type, operands)):
            return concat(operands)
        total = operands[0]
        for operand in operands[1:]:
            if isinstance(total, TrackedStr):
                total = total + operand
            else:
                total = self.call_binop(context, "+", total, operand)
        return total

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:  # Any: as in jinja2
        """An operation within the limits."""
        check_operands(operator, left, right)
        result = super().call_binop(context, operator, left, right)
        if type(result) is not int:
            take_result(result)
        return result

    def call_test(self, name: str, value: Any, *args: Any, **kwargs: Any) -> Any:  # Any: as in jinja2
        """A test that a filter makes for each item."""
        step()
        return super().call_test(name, value, *args, **kwargs)

    def getattr(self, obj: Any, attribute: str) -> Any:  # Any: template values
        """As in jinja2, without the detour for what templates ask for most and the sandbox always allows."""
        kind = type(obj)
        if kind is TrackedDict:
            if attribute not in _DICT_ATTRIBUTES:
                if attribute in obj:
                    return obj[attribute]
                if not attribute.startswith("_"):
                    return self.undefined(obj=obj, name=attribute)
        elif kind is TrackedStr:
            if attribute in _STRING_METHODS:
                return getattr(obj, attribute)
        elif kind is LoopContext:
            if attribute in _LOOP_NUMBERS:
                return getattr(obj, attribute)
        elif kind is TemplateNamespace and not attribute.startswith("_"):
            value = getattr(obj, attribute, None)
            if value is not None and not callable(value):
                return value
        return super().getattr(obj, attribute)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:  # Any: as in jinja2
        """As in the sandbox; bytes can only be turned back into text."""
        kind = type(obj)
        known = self._safe.get((kind, attr))
        if known is not None:
            return known
        if isinstance(obj, (bytes, bytearray)) and attr not in _BYTES_ATTRIBUTES:
            return False
        is_safe = super().is_safe_attribute(obj, attr, value)
        # The sandbox looks only at the type and the name.
        if kind in _USUAL_TYPES and len(self._safe) < _KNOWN_ATTRIBUTES:
            self._safe[kind, attr] = is_safe
        return is_safe

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:  # Any: as in jinja2
        """`str.format` on tracked strings, inside the sandbox and with origins."""
        owner = getattr(value, "__self__", None)
        name = getattr(value, "__name__", "")
        if not isinstance(owner, str) or name not in ("format", "format_map"):
            return super().wrap_str_format(value)
        original = super().wrap_str_format(plain(owner).format)
        formatter = SandboxedFormatter(self)

        def formatted(*args: Any, **kwargs: Any) -> TrackedStr:  # Any: template values
            if name == "format_map":
                args, kwargs = (), dict(*args)
            check_format(owner, "{", (*args, *kwargs.values()))
            assert original is not None
            if isinstance(owner, SafeStr):
                raise jinja2.TemplateRuntimeError("tokscore does not format text that is marked as safe")
            expected = plain(original(*args, **kwargs))
            made = format_tracked(formatter, track(owner), args, kwargs)
            return made if plain(made) == expected else untracked(expected)

        return formatted

    def _sum(
        self, iterable: Iterable[Any], attribute: str | int | None = None, start: Any = 0
    ) -> Any:  # Any: template values
        if isinstance(start, str):
            raise TypeError("sum() can't sum strings")
        total = start
        for item in iterable if attribute is None else map(make_attrgetter(self, attribute), iterable):
            check_operands("+", total, item)
            total = total + item
            take_result(total)
        return total

    def _join(self, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> TrackedStr:
        items = value if attribute is None else map(make_attrgetter(self, attribute), value)
        separator = literal("") if d == "" else track(d)
        return unmarked(separator).join([track(item) for item in items])


# What bytes may still do; whatever makes them longer is refused.
_BYTES_ATTRIBUTES = frozenset({"decode", "hex", "startswith", "endswith", "find", "index", "count"})


def _writer_of(variables: Sequence[object]) -> int | None:
    """Message of the innermost loop over messages, else of the outermost loop over parts of one."""
    writer = None
    for variable in reversed(variables):
        origin = origin_of(variable)
        if origin is None and isinstance(variable, dict):  # one that the template made of others
            origins = (origin_of(value) for value in variable.values())
            origin = next((origin for origin in origins if origin is not None), None)
            is_message = "role" in variable
        else:
            is_message = origin is not None and len(origin.path) == 2
        if origin is not None and origin.message is not None:
            writer = origin.message
            if is_message:
                break
    return writer
