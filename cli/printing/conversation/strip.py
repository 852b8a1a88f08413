"""A conversation as a strip of tokens, wrapped to the width of a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from tokscore.cli.printing.visible import BETWEEN, visible

if TYPE_CHECKING:
    from rich.text import Text

    from tokscore.analytics.report.conversation.scored import ScoredConversation
    from tokscore.analytics.report.conversation.token_texts import TokenText

_GUTTER = 8
# Levels 1 to 4, the same in colour and as a digit behind the token. Below the line: the student's is higher.
_RAISED, _LOWERED = "¹²³⁴", "₁₂₃₄"
_WARM = ("black on #ffeda0", "black on #feb24c", "bold black on #f4705a", "bold white on #a50026")
_COOL = ("black on #d0e4f5", "black on #85bcdb", "bold white on #3a7ebf", "bold white on #08306b")


class Strip(NamedTuple):
    """One conversation as it is printed.

    Attributes:
        conversation: With its messages.
        texts: Of its tokens.
        levels: How far each stands out, 0 to 4, -1 where unknown.
        is_negative: Of each token, whether its value is below zero and the metric has two directions.
    """

    conversation: ScoredConversation
    texts: list[TokenText]
    levels: list[int]
    is_negative: list[bool]

    def lines(self, width: int) -> Iterator[Text]:
        """Headings and tokens in lines of at most `width` cells."""
        from rich.text import Text

        from tokscore.dataset.tokens import run_spans

        conversation = self.conversation
        seen: set[int] = set()
        for start, stop in run_spans(conversation.message_indices).tolist():
            message = int(conversation.message_indices[start])
            continued = ", continued" if message in seen else ""
            seen.add(message)
            yield Text()
            yield Text(self._heading(message) + continued, style="bold")
            yield from self._wrapped(start, stop, max(width - _GUTTER, 8))

    def _heading(self, message: int) -> str:
        if message < 0:
            return "no message"
        facts = self.conversation.messages[message]
        name = f" {visible(facts.tool_name)}" if facts.tool_name else ""
        flags = f"  flags: {', '.join(facts.flags)}" if facts.flags else ""
        return f"message {message}  {visible(facts.role)}{name}{flags}"

    def _wrapped(self, start: int, stop: int, width: int) -> Iterator[Text]:
        """Tokens [start, stop); a line ends where the next does not fit, and behind a newline."""
        from rich.cells import cell_len
        from rich.text import Text

        line, first, n_cells = Text(), start, 0
        for index in range(start, stop):
            shown, style = self._token(index)
            between = BETWEEN if n_cells else ""
            if n_cells and n_cells + cell_len(between + shown) > width:
                yield _numbered(first, line)
                line, first, n_cells, between = Text(), index, 0, ""
            for piece in _pieces(shown, width):
                if n_cells and n_cells + cell_len(between + piece) > width:
                    yield _numbered(first, line)
                    line, first, n_cells = Text(), index, 0
                line.append(between, style="dim")
                line.append(piece, style=style)
                n_cells += cell_len(between + piece)
                between = ""
            if self.texts[index].is_literal and "\n" in self.texts[index].text and index + 1 < stop:
                yield _numbered(first, line)
                line, first, n_cells = Text(), index + 1, 0
        if n_cells:
            yield _numbered(first, line)

    def _token(self, index: int) -> tuple[str, str]:
        text, level = self.texts[index], self.levels[index]
        shown = (visible(text.text, _RAISED + _LOWERED) if text.is_literal else text.text) or "…"
        if level < 1:
            return shown, "dim" if level < 0 else ""
        digits, styles = (_LOWERED, _COOL) if self.is_negative[index] else (_RAISED, _WARM)
        return shown + digits[level - 1], styles[level - 1]


def _numbered(position: int, line: Text) -> Text:
    from rich.text import Text

    return Text.assemble((f"{position:>{_GUTTER - 1}} ", "dim"), line)


def _pieces(shown: str, width: int) -> Iterator[str]:
    """The token cut into pieces of at most `width` cells."""
    from rich.cells import cell_len

    if cell_len(shown) <= width:
        yield shown
        return
    piece, n_cells = "", 0
    for character in shown:
        wide = cell_len(character)
        if n_cells + wide > width:
            yield piece
            piece, n_cells = "", 0
        piece += character
        n_cells += wide
    yield piece
