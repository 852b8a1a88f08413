"""The sandbox that chat templates run in; it keeps the origin of everything they print."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from string import Formatter
from typing import Any, NoReturn

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.filters import do_title, make_attrgetter
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter

from tokscore.rendering.provenance import (
    TrackedBool,
    TrackedStr,
    concat,
    literal,
    origin_of,
    plain,
    syntax,
    track,
    untracked,
)
from tokscore.rendering.provenance_json import dumps


class _TrackingGenerator(CodeGenerator):
    """Compiles templates so that literals, outputs and `~` keep origins.

    Each output is given the loop variables around it: the message they came from is the one that wrote it.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # Any: passed through to jinja2
        super().__init__(*args, **kwargs)
        self._loops: list[list[str]] = []

    def _write_literal(self, text: str) -> None:
        literals = self.environment.literals  # type: ignore[attr-defined]
        literals.setdefault(text, literal(text))
        self.write(f"environment.literals[{text!r}]")

    def visit_Const(self, node: nodes.Const, frame: Frame) -> None:  # noqa: N802
        self._write_constant(node.as_const(frame.eval_ctx))

    def _write_constant(self, value: Any) -> None:  # Any: what jinja2 folded at compile time
        if isinstance(value, str):
            self._write_literal(value)
        elif isinstance(value, (list, tuple)):
            self.write("[" if isinstance(value, list) else "(")
            for item in value:
                self._write_constant(item)
                self.write(", ")
            self.write("]" if isinstance(value, list) else ")")
        elif isinstance(value, dict):
            self.write("{")
            for key, item in value.items():
                self._write_constant(key)
                self.write(": ")
                self._write_constant(item)
                self.write(", ")
            self.write("}")
        else:
            self.write(repr(value))

    def visit_TemplateData(self, node: nodes.TemplateData, frame: Frame) -> None:  # noqa: N802
        self._write_literal(str(node.as_const(frame.eval_ctx)))

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        self.write("environment.concat((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_For(self, node: nodes.For, frame: Frame) -> None:  # noqa: N802
        names = [name.name for name in node.target.find_all(nodes.Name)]
        if isinstance(node.target, nodes.Name):
            names.append(node.target.name)
        self._loops.append(names)
        try:
            super().visit_For(node, frame)
        finally:
            self._loops.pop()

    def visit_Macro(self, node: nodes.Macro, frame: Frame) -> None:  # noqa: N802
        outside, self._loops = self._loops, []
        try:
            super().visit_Macro(node, frame)
        finally:
            self._loops = outside

    def visit_Output(self, node: nodes.Output, frame: Frame) -> None:  # noqa: N802
        if frame.require_output_check:
            if self.has_known_extends:
                return
            self.writeline("if parent_template is None:")
            self.indent()
        variables = "".join(f"{name}, " for name in self._loop_variables(frame))
        for child in node.nodes:
            head = (
                "yield environment.emit("
                if frame.buffer is None
                else f"{frame.buffer}.append(environment.emit("
            )
            self.writeline(head, child)
            self.visit(child, frame)
            self.write(f", ({variables}))" + ("" if frame.buffer is None else ")"))
        if frame.require_output_check:
            self.outdent()

    def _loop_variables(self, frame: Frame) -> list[str]:
        references = (frame.symbols.find_ref(name) for names in self._loops for name in names)
        return [reference for reference in references if reference is not None]


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


class _TemplateDict:
    """The `dict` global, without the attributes of the class."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:  # Any: template values
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:  # Any: template values
        return dict.fromkeys(*args, **kwargs)


class _TemplateNamespace(jinja2.utils.Namespace):
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


class TrackingEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox in which templates run, with the names transformers gives them."""

    code_generator_class = _TrackingGenerator
    concat = staticmethod(concat)

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, jinja2.ext.loopcontrols],
            cache_size=0,
        )
        self.literals: dict[str, TrackedStr] = {}
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
            "dict": _TemplateDict(),
            "namespace": _TemplateNamespace,
        }
        self.filters |= {
            "tojson": dumps,
            "join": self._join,
            "string": track,
            "trim": lambda value, chars=None: track(value).strip(chars),
            "upper": lambda value: track(value).upper(),
            "lower": lambda value: track(value).lower(),
            "capitalize": lambda value: track(value).capitalize(),
            "replace": lambda s, old, new, count=None: track(s).replace(
                track(old), track(new), -1 if count is None else count
            ),
            "title": _title,
            "indent": _indent,
            "safe": track,
        }
        self.tests |= {
            "boolean": lambda value: isinstance(value, (bool, TrackedBool)),
            "true": lambda value: value is True or (isinstance(value, TrackedBool) and bool(value)),
            "false": lambda value: value is False or (isinstance(value, TrackedBool) and not value),
            "integer": lambda value: isinstance(value, int) and not isinstance(value, (bool, TrackedBool)),
            "sameas": _same_as,
        }

    @staticmethod
    def emit(value: object, variables: Sequence[object]) -> TrackedStr:
        """What an output statement prints, with the message that wrote it.

        Args:
            value: The value of the expression.
            variables: Loop variables around the statement, outermost first.
        """
        text = track(value)
        runs = text._runs
        if not runs:
            return text
        writer = None
        for variable in variables:
            message = _message_of(variable)
            if message is not None:
                writer = message
        if writer is None:
            messages = {run.origin.message for run in runs if run.origin is not None} - {None}
            writer = messages.pop() if len(messages) == 1 else None
        if writer is None:
            return text
        return TrackedStr(
            text, tuple(run if run.writer is not None else run._replace(writer=writer) for run in runs)
        )

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:  # Any: as in jinja2
        """`str.format` on tracked strings, inside the sandbox and with origins."""
        owner = getattr(value, "__self__", None)
        if not isinstance(owner, TrackedStr) or getattr(value, "__name__", "") not in (
            "format",
            "format_map",
        ):
            return super().wrap_str_format(value)
        original = super().wrap_str_format(plain(owner).format)
        formatter = SandboxedFormatter(self)

        def formatted(*args: Any, **kwargs: Any) -> TrackedStr:  # Any: template values
            if value.__name__ == "format_map":
                args, kwargs = (), dict(*args)
            assert original is not None
            expected = plain(original(*args, **kwargs))
            made = _format(formatter, owner, args, kwargs)
            return made if plain(made) == expected else untracked(expected)

        return formatted

    def _join(self, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> TrackedStr:
        items = value if attribute is None else map(make_attrgetter(self, attribute), value)
        separator = literal("") if d == "" else track(d)
        return separator.join([track(item) for item in items])


def _message_of(variable: object) -> int | None:
    """Message that a loop variable stands for; of a dict that the template made, its first value decides."""
    origin = origin_of(variable)
    if origin is None and isinstance(variable, dict):
        origins = (origin_of(value) for value in variable.values())
        origin = next((origin for origin in origins if origin is not None), None)
    return None if origin is None else origin.message


def _format(
    formatter: Formatter, template: TrackedStr, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> TrackedStr:
    pieces: list[str] = []
    automatic = 0
    for text, name, spec, conversion in formatter.parse(plain(template)):
        if text:
            pieces.append(syntax(text, origin_of(template)))
        if name is None:
            continue
        if name == "" or name[0] in ".[":
            name, automatic = f"{automatic}{name}", automatic + 1
        value, _ = formatter.get_field(name, args, kwargs)
        if spec or conversion:
            shown = formatter.format_field(formatter.convert_field(value, conversion), spec or "")
            pieces.append(syntax(plain(shown), origin_of(value)))
        else:
            pieces.append(track(value))
    return concat(pieces)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.exceptions.TemplateError(plain(str(message)))


def _strftime_now(pattern: str) -> TrackedStr:
    return literal(dt.datetime.now().strftime(plain(pattern)))  # local time, as transformers does


def _same_as(value: object, other: object) -> bool:
    if isinstance(value, TrackedBool) and isinstance(other, bool):
        return bool(value) is other
    return value is other


def _title(value: object) -> TrackedStr:
    text = track(value)
    changed = do_title(plain(text))
    return TrackedStr(changed, text._runs) if len(changed) == len(text) else untracked(changed)


def _indent(s: object, width: int | str = 4, first: bool = False, blank: bool = False) -> TrackedStr:
    margin = track(width) if isinstance(width, str) else literal(" " * width)
    newline = literal("\n")
    lines = (track(s) + newline).splitlines()
    if not blank:
        rest = [margin + line if line else line for line in lines[1:]]
    else:
        rest = [margin + line for line in lines[1:]]
    indented = newline.join([lines[0], *rest])
    return margin + indented if first else indented
