"""`tokscore render --explain`: one conversation with every token and its owner."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tokscore.cli.printing.console import note, write
from tokscore.cli.printing.output_format import Format
from tokscore.cli.printing.tables import Column, counted, print_json, print_rows
from tokscore.cli.printing.visible import BETWEEN, visible

if TYPE_CHECKING:
    from rich.text import Text

    from tokscore.dataset.tokens import MessageFacts
    from tokscore.rendering.explain import Explanation

_STYLES = {"system": "yellow", "developer": "yellow", "user": "green", "assistant": "cyan", "tool": "magenta"}
_OTHER_ROLE, _NO_ROLE, _CONTROL = "blue", "bright_black", "bold red reverse"
_LEGEND = (
    f"S sampled, ? cannot be told, C content, ! control token from content; {BETWEEN} between tokens, "
    "· space, ↵ newline, → tab, … a token inside the character before it"
)
_COLUMNS = tuple(
    Column(name, name)
    for name in (
        "branch",
        "position",
        "token_id",
        "text",
        "message_index",
        "role",
        "source",
        "is_content",
        "is_sampled",
        "is_control",
    )
)


def print_explanation(branches: Sequence[Explanation], form: Format) -> None:
    """Print every token of a conversation with its owner, one branch after the other."""
    if form is Format.TABLE:
        for i, explanation in enumerate(branches):
            if i:
                write("\n")
            _print_tokens(explanation, len(branches))
        note(_LEGEND)
        return
    rows = [row for explanation in branches for row in _token_rows(explanation)]
    if form is Format.CSV:
        print_rows(_COLUMNS, rows, form)
        return
    print_json(
        {
            "conversation_id": branches[0].conversation_id,
            "status": ",".join(dict.fromkeys(explanation.status for explanation in branches)),
            "branches": [
                {"branch": each.branch, "status": each.status, "n_tokens": len(each.tokens)}
                for each in branches
            ],
            "messages": [
                {"branch": explanation.branch, **message._asdict()}
                for explanation in branches
                for message in explanation.tokens.messages
            ],
            "tokens": rows,
        }
    )


def _token_rows(explanation: Explanation) -> Iterator[dict[str, int | str | bool | None]]:
    tokens = explanation.tokens
    for i, text in enumerate(explanation.texts):
        message = int(tokens.message_indices[i])
        yield {
            "branch": explanation.branch,
            "position": i,
            "token_id": int(tokens.token_ids[i]),
            "text": text,
            "message_index": message,
            "role": tokens.messages[message].role if message >= 0 else None,
            "source": tokens.sources[tokens.source_codes[i]],
            "is_content": bool(tokens.is_content[i]),
            "is_sampled": {1: True, 0: False}.get(int(tokens.sampled_mask[i])),
            "is_control": bool(explanation.is_control[i]),
        }


class _Line(NamedTuple):
    """Neighbouring tokens of one owner."""

    start: int
    stop: int
    message: int
    source: str
    is_content: bool
    sampled: int
    is_control: bool


def _lines(explanation: Explanation) -> Iterator[_Line]:
    """The tokens by owner; a newline, and the first difference from transformers, start a new line."""
    tokens = explanation.tokens
    owners = list(
        zip(
            tokens.message_indices.tolist(),
            (tokens.sources[code] for code in tokens.source_codes.tolist()),
            tokens.is_content.tolist(),
            tokens.sampled_mask.tolist(),
            explanation.is_control.tolist(),
            strict=True,
        )
    )
    start = 0
    for stop in range(1, len(owners) + 1):
        ends = stop == len(owners) or owners[stop] != owners[start] or stop == explanation.different_token
        if ends or "\n" in explanation.texts[stop - 1]:
            yield _Line(start, stop, *owners[start])
            start = stop


def _print_tokens(explanation: Explanation, n_branches: int) -> None:
    from rich.text import Text

    from tokscore.cli.printing.styled import StyledConsole

    console = StyledConsole(soft_wrap=True)
    tokens = explanation.tokens
    branch = f" branch {explanation.branch} of {n_branches}" if n_branches > 1 else ""
    console.print(
        Text(
            f"{explanation.conversation_id}{branch}  "
            f"{explanation.source_file}:{explanation.source_line}  {counted(len(tokens), 'token')}, "
            f"{int((tokens.sampled_mask == 1).sum()):,} sampled, "
            f"{int(tokens.is_content.sum()):,} content, status {explanation.status}",
            style="bold",
        )
    )
    seen: set[int] = set()
    shown: int | None = None
    for line in _lines(explanation):
        if line.message != shown:
            shown = line.message
            facts = tokens.messages[shown] if shown >= 0 else None
            for text in _heading(explanation, shown, facts, continued=shown in seen):
                console.print(text)
            seen.add(shown)
        if line.start == explanation.different_token:
            console.print(Text("        ≠ first difference from transformers", style=_CONTROL))
        console.print(_shown_line(explanation, line))
    for index, facts in enumerate(tokens.messages):
        if index not in seen:
            for text in _heading(explanation, index, facts, continued=False):
                console.print(text)


def _heading(
    explanation: Explanation, message: int, facts: MessageFacts | None, *, continued: bool
) -> Iterator[Text]:
    from rich.text import Text

    yield Text()
    style = f"bold {_style(facts)}"
    if facts is None:
        yield Text("no message", style=style)
        return
    name = f" {facts.tool_name}" if facts.tool_name else ""
    if continued:
        yield Text(f"message {message}  {facts.role}{name}, continued", style=style)
        return
    mine = explanation.tokens.message_indices == message
    parts = [counted(int(mine.sum()), "token")]
    if facts.unknown_reason is None:
        parts.append(f"{int((explanation.tokens.sampled_mask[mine] == 1).sum()):,} sampled")
    parts.append(f"{int(explanation.tokens.is_content[mine].sum()):,} content")
    yield Text(f"message {message}  {facts.role}{name}  {', '.join(parts)}", style=style)
    if facts.flags:
        yield Text(f"        flags: {', '.join(facts.flags)}", style="bold")
    if facts.unknown_reason is not None:
        yield Text(f"        sampled unknown: {facts.unknown_reason}", style="bold")
    if facts.n_dropped_characters:
        yield Text(
            f"        dropped: {counted(facts.n_dropped_characters, 'character')} of its text", style="bold"
        )


def _style(facts: MessageFacts | None) -> str:
    return _NO_ROLE if facts is None else _STYLES.get(facts.role, _OTHER_ROLE)


def _shown_line(explanation: Explanation, line: _Line) -> Text:
    from rich.text import Text

    facts = explanation.tokens.messages[line.message] if line.message >= 0 else None
    marks = (
        {1: "S", 0: "-", -1: "?"}[line.sampled]
        + ("C" if line.is_content else "-")
        + ("!" if line.is_control else " ")
    )
    style = _CONTROL if line.is_control else f"{'bold ' if line.sampled == 1 else ''}{_style(facts)}"
    shown = Text(f"{line.start:>7} {marks} {line.source:<18} ")
    for i in range(line.start, line.stop):
        if i > line.start:
            shown.append(BETWEEN, style="dim")
        shown.append(visible(explanation.texts[i]) or "…", style=style)
    return shown
