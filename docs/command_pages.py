"""One page for each command, from the command line itself."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import Any

import typer
from page_text import NOTICE, UndocumentedError, attributes, table

from tokscore.cli.app import app
from tokscore.dataset.errors import ExitCode

_BRACKETS = re.compile(r"^(?P<text>.*?)(?:  \[(?P<extra>[^\]]*)\])?$", re.DOTALL)


def _group() -> Any:  # Any: typer brings its own click, or uses the one that is installed
    return typer.main.get_command(app)


def command_names() -> list[str]:
    """All commands in the order of `tokscore --help`."""
    return list(_group().commands)


def command_page(name: str) -> str:
    """The text of `tokscore NAME --help` as a page."""
    group = _group()
    context = typer.Context(group, info_name="tokscore", auto_envvar_prefix="TOKSCORE")
    command = group.commands[name]
    inner = typer.Context(command, info_name=name, parent=context)
    parameters = command.get_params(inner)
    arguments = [each for each in parameters if each.param_type_name == "argument"]
    options = [each for each in parameters if each.param_type_name == "option" and each.name != "help"]
    usage = " ".join(["tokscore", name, "[OPTIONS]", *(_usage_of(each) for each in arguments)])
    text = f"# tokscore {name}\n\n{NOTICE}\n    {usage}\n\n{_purpose(name, command.help)}\n"
    if arguments:
        rows = [_parameter(name, each, inner) for each in arguments]
        text += "\n## Arguments\n\n" + table(
            ("argument", "", "meaning"),
            [(f"`{each.metavar.strip('[]')}`", *row[1:]) for each, row in zip(arguments, rows, strict=True)],
        )
    text += "\n## Options\n\n" + table(
        ("option", "default", "meaning"), [_parameter(name, each, inner) for each in options]
    )
    text += f"\n{_environment(name, options)}\n"
    examples = command.epilog.partition("\b\n")[2].rstrip()
    if "tokscore" not in examples:
        raise UndocumentedError(f"tokscore {name} has no examples in its epilog.")
    text += f"\n## Examples\n\n```\n{inspect.cleandoc(examples)}\n```\n\n## Exit codes\n\n"
    return text + _exit_codes()


def _environment(command: str, options: Sequence[Any]) -> str:  # Any: parameters of typer
    """How options are set in the environment."""
    prefix = f"TOKSCORE_{command.upper()}_"
    own = [each for each in options if each.envvar is None]
    shared = [each for each in options if each.envvar is not None]
    for each in own:
        if each.opts[0] != f"--{each.name.replace('_', '-')}":
            raise UndocumentedError(f"the variable of {each.opts[0]} of tokscore {command} has another name.")
    text = (
        f"In the environment, an option is `{prefix}` and its name: `{prefix}{own[0].name.upper()}`. "
        if own
        else ""
    )
    return text + " ".join(f"`{each.opts[0]}` is `{each.envvar}` for all commands." for each in shared)


def _usage_of(argument: Any) -> str:  # Any: a parameter of typer
    text = f"[{argument.metavar.strip('[]')}]" if not argument.required else str(argument.metavar)
    return f"{text}..." if argument.nargs == -1 and not argument.metavar.endswith("...") else text


def _purpose(name: str, text: str | None) -> str:
    if not text:
        raise UndocumentedError(f"tokscore {name} has no docstring.")
    return inspect.cleandoc(text)


def _parameter(command: str, parameter: Any, context: typer.Context) -> tuple[str, str, str]:
    """Name, default and meaning of an argument or option, as the help has them."""
    shown, text = parameter.get_help_record(context)
    match = _BRACKETS.match(text)
    assert match is not None
    meaning, extra = match["text"].strip(), match["extra"] or ""
    if not meaning or meaning.startswith("["):
        raise UndocumentedError(f"{shown} of tokscore {command} has no help.")
    default, limits = "", []
    for part in extra.split("; "):
        if part == "required":
            default = "required"
        elif part.startswith("default: "):
            default = part.removeprefix("default: ").strip("()")
        elif part:
            limits.append(re.sub(r"^x>=", "at least ", part))
    if limits:
        meaning = f"{meaning.removesuffix('.')} ({', '.join(limits)})."
    return f"`{shown}`", default, meaning


def _exit_codes() -> str:
    meanings = attributes(ExitCode)
    return table(("code", "meaning"), [(str(int(code)), meanings[code.name]) for code in ExitCode])
