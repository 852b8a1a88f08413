"""Writes the pages that follow from the code: commands/ from the command line, columns.md from schemas.

python docs/generate.py
"""

from __future__ import annotations

from pathlib import Path

from column_page import columns_page
from command_pages import command_names, command_page

DOCS = Path(__file__).parent


def pages() -> dict[str, str]:
    """The text of every page by its path in docs/."""
    return {f"commands/{name}.md": command_page(name) for name in command_names()} | {
        "columns.md": columns_page()
    }


def main() -> None:
    """Write all pages."""
    for name, text in pages().items():
        path = DOCS / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
