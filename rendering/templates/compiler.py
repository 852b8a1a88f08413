"""Compiles chat templates so that what they print keeps its origin and what they do is counted."""

# ruff: noqa: D102, N802  the visitors of jinja2

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.optimizer import Optimizer
from jinja2.sandbox import SandboxedEnvironment
from jinja2.visitor import NodeTransformer

from tokscore.rendering.templates.cost import check_operands
from tokscore.rendering.templates.limits import TemplateLimitError, weigh
from tokscore.rendering.templates.strings import literal

_SEARCHES = frozenset({"in", "notin"})
_OPERATIONS = SandboxedEnvironment.default_binop_table


class TrackingGenerator(CodeGenerator):
    """Compiles templates so that literals, outputs and `~` keep origins.

    Each output is given the loop variables around it: the message they came from is the one that wrote it.
    So is text that a loop adds to a namespace, to be printed later. A loop over numbers stands for the
    messages that its body looks up by them.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # Any: passed through to jinja2
        super().__init__(*args, **kwargs)
        self._loops: list[list[nodes.Expr]] = []
        self._loop_bodies: set[int] = set()
        self._collected: dict[int, nodes.NSRef] = {}
        self._n_macros = 0

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:  # Any: as in jinja2
        target = self._collected.pop(id(node), None)
        if target is None:
            return super().visit(node, *args, **kwargs)
        frame = args[0]
        self.write("environment.collected(")
        super().visit(node, *args, **kwargs)
        self.write(f", environment.getattr({frame.symbols.ref(target.name)}, {target.attr!r}), (")
        self._write_loop_variables(frame)
        self.write("))")
        return None

    def blockvisit(self, nodes: Iterable[nodes.Node], frame: Frame) -> None:
        if id(nodes) in self._loop_bodies:
            self.writeline("environment.step()")
        super().blockvisit(nodes, frame)

    def _write_literal(self, text: str) -> None:
        literals = self.environment.literals  # type: ignore[attr-defined]
        literals.setdefault(text, literal(text))
        self.write(f"environment.literals[{text!r}]")

    def visit_Const(self, node: nodes.Const, frame: Frame) -> None:
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

    def visit_TemplateData(self, node: nodes.TemplateData, frame: Frame) -> None:
        self._write_literal(str(node.as_const(frame.eval_ctx)))

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.concat((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_Add(self, node: nodes.BinExpr, frame: Frame) -> None:
        operands: list[nodes.Expr] = [node.right]
        first = node.left
        while isinstance(first, nodes.Add):
            operands.append(first.right)
            first = first.left
        self.write("environment.add(context, (")
        for operand in (first, *reversed(operands)):
            self.visit(operand, frame)
            self.write(", ")
        self.write("))")

    def visit_For(self, node: nodes.For, frame: Frame) -> None:
        names: list[nodes.Expr] = list(node.target.find_all(nodes.Name))
        if isinstance(node.target, nodes.Name):
            names.append(node.target)
            if (looked_up := _looked_up(node, node.target.name)) is not None:
                names.append(looked_up)
        self._loops.append(names)
        self._loop_bodies.add(id(node.body))
        try:
            super().visit_For(node, frame)
        finally:
            self._loops.pop()

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        if not isinstance(node.arg, nodes.Slice):
            super().visit_Getitem(node, frame)
            return
        self.write("environment.sliced(")
        super().visit_Getitem(node, frame)
        self.write(")")

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:
        # Comparing with a constant costs no more than its length; looking for one costs that of the text.
        if all(isinstance(each.expr, nodes.Const) and each.op not in _SEARCHES for each in node.ops):
            super().visit_Compare(node, frame)
            return
        is_chain = len(node.ops) > 1
        self.write("environment.compare_chain(" if is_chain else "environment.compare(")
        self.visit(node.expr, frame)
        for operand in node.ops:
            self.write(f", {operand.op!r}, {'lambda: ' if is_chain else ''}")
            self.visit(operand.expr, frame)
        self.write(")")

    def visit_Macro(self, node: nodes.Macro, frame: Frame) -> None:
        outside, self._loops = self._loops, []
        self._n_macros += 1
        try:
            super().visit_Macro(node, frame)
        finally:
            self._loops = outside
            self._n_macros -= 1

    def visit_Output(self, node: nodes.Output, frame: Frame) -> None:
        if frame.require_output_check:
            if self.has_known_extends:
                return
            self.writeline("if parent_template is None:")
            self.indent()
        for child in node.nodes:
            self.writeline("yield " if frame.buffer is None else f"{frame.buffer}.append(", child)
            self._open_emit(stored=isinstance(child, nodes.Getattr))
            self.visit(child, frame)
            self._close_emit(frame)
            self.write("" if frame.buffer is None else ")")
        if frame.require_output_check:
            self.outdent()

    def visit_CallBlock(self, node: nodes.CallBlock, frame: Frame) -> None:
        call_frame, macro = self.macro_body(node, frame)
        self.writeline("caller = ")
        self.macro_def(macro, call_frame)
        self.start_write(frame, node)
        self._open_emit()
        self.visit_Call(node.call, frame, forward_caller=True)
        self._close_emit(frame)
        self.end_write(frame)

    def _open_emit(self, *, stored: bool = False) -> None:
        emit = "emit_stored" if stored else "emit"
        self.write(f"environment.{'emit_in_macro' if self._n_macros else emit}(")

    def _close_emit(self, frame: Frame) -> None:
        self.write(", (")
        self._write_loop_variables(frame)
        self.write("))")

    def visit_Assign(self, node: nodes.Assign, frame: Frame) -> None:
        if isinstance(node.target, nodes.NSRef) and any(self._loops) and _reads(node.node, node.target):
            self._collected[id(node.node)] = node.target
        super().visit_Assign(node, frame)

    def _write_loop_variables(self, frame: Frame) -> None:
        for variable in (variable for variables in self._loops for variable in variables):
            names = [variable] if isinstance(variable, nodes.Name) else list(variable.find_all(nodes.Name))
            references = [frame.symbols.find_ref(name.name) for name in names]
            if None in references:
                continue
            if isinstance(variable, nodes.Name):
                self.write(f"{references[0]}, ")
            else:
                self.visit(variable, frame)
                self.write(", ")


def _looked_up(loop: nodes.For, number: str) -> nodes.Expr | None:
    """What a loop over numbers looks up by them: `messages[i]`, or the first variable it sets to an item."""
    if not (
        isinstance(loop.iter, nodes.Call)
        and isinstance(loop.iter.node, nodes.Name)
        and loop.iter.node.name == "range"
    ):
        return None
    for item in (each for node in loop.body for each in (node, *node.find_all(nodes.Getitem))):
        if (
            isinstance(item, nodes.Getitem)
            and isinstance(item.node, nodes.Name)
            and isinstance(item.arg, nodes.Name)
            and item.arg.name == number
        ):
            return item
    for node in loop.body:
        if (
            isinstance(node, nodes.Assign)
            and isinstance(node.target, nodes.Name)
            and isinstance(node.node, nodes.Getitem)
        ):
            return nodes.Name(node.target.name, "load")
    return None


def _reads(value: nodes.Node, target: nodes.NSRef) -> bool:
    """Whether an expression holds the namespace's variable that it is assigned to."""
    return any(
        isinstance(read.node, nodes.Name) and read.node.name == target.name and read.attr == target.attr
        for read in (value, *value.find_all(nodes.Getattr))
        if isinstance(read, nodes.Getattr)
    )


class ConstantCheck(Optimizer):
    """Folds constants within the limits, as jinja2 does without any when transformers compiles a template.

    Raises:
        TemplateLimitError: When a node is visited whose value is too large.
    """

    def generic_visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:  # Any: as in jinja2
        """The node, or the constant it stands for."""
        node = NodeTransformer.generic_visit(self, node, *args, **kwargs)
        if not isinstance(node, nodes.Expr):
            return node
        try:
            value = self._value(node)
            weigh(value)  # jinja2 writes it out
            return nodes.Const.from_untrusted(value, lineno=node.lineno, environment=self.environment)
        except nodes.Impossible as error:
            if isinstance(error.__cause__, TemplateLimitError):
                raise error.__cause__ from None
            return node

    def _value(self, node: nodes.Expr) -> Any:  # Any: what jinja2 folds
        if not isinstance(node, nodes.BinExpr) or node.operator not in _OPERATIONS:
            return node.as_const()
        left, right = node.left.as_const(), node.right.as_const()
        check_operands(node.operator, left, right)
        try:
            return _OPERATIONS[node.operator](left, right)
        except Exception as error:
            raise nodes.Impossible from error
