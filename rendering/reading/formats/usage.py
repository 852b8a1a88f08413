"""The tokens of a request as a server counted them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokscore.dataset.errors import ConversationError
from tokscore.rendering.conversations.trace import Usage
from tokscore.rendering.reading.formats.fields import get


def usage_of(usage: Mapping[str, Any], path: str) -> Usage | None:
    """The counts in a `usage` object, None where it lacks one.

    Raises:
        ConversationError: One of them is no number.
    """
    counts = [get(usage, key, int, path, "a whole number") for key in ("prompt_tokens", "completion_tokens")]
    check_counts(counts, path)
    n_prompt, n_completion = counts
    return None if n_prompt is None or n_completion is None else Usage(n_prompt, n_completion)


def check_counts(counts: Sequence[int | None], path: str) -> None:
    """Refuse numbers of tokens below 0.

    Args:
        counts: Of the prompt and of the completion, None where there is none.
        path: JSON path of the `usage`.

    Raises:
        ConversationError: With the number.
    """
    for key, count in zip(("prompt_tokens", "completion_tokens"), counts, strict=True):
        if count is not None and count < 0:
            raise ConversationError(
                f"is {count}; expected a number of tokens, 0 or more.", path=f"{path}.{key}"
            )
