"""The tokens of a request as a server counted them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokscore.dataset.errors import ConversationError
from tokscore.rendering.conversations.trace import Usage
from tokscore.rendering.reading.fields.values import get


def usage_of(
    usage: Mapping[str, Any],
    path: str,
    prompt: Sequence[str] = ("prompt_tokens",),
    completion: str = "completion_tokens",
) -> Usage | None:  # Any: JSON values
    """The counts in a `usage` object, None where it lacks one.

    Args:
        usage: A JSON object.
        path: Its JSON path.
        prompt: Keys of the prompt's count; those behind the first are added to it where they are there, as
            for tokens that came from a cache.
        completion: Key of the completion's count.

    Raises:
        ConversationError: One of them is no number, or below 0.
    """
    first, *more = (get(usage, key, int, path, "a whole number") for key in prompt)
    n_completion = get(usage, completion, int, path, "a whole number")
    if first is None or n_completion is None:
        return None
    n_prompt = first + sum(each or 0 for each in more)
    check_counts((first, n_completion), path, (prompt[0], completion))
    return Usage(n_prompt, n_completion)


def check_counts(
    counts: Sequence[int | None], path: str, keys: Sequence[str] = ("prompt_tokens", "completion_tokens")
) -> None:
    """Refuse numbers of tokens below 0.

    Args:
        counts: Of the prompt and of the completion, None where there is none.
        path: JSON path of the `usage`.
        keys: Of the counts.

    Raises:
        ConversationError: With the number.
    """
    for key, count in zip(keys, counts, strict=True):
        if count is not None and count < 0:
            raise ConversationError(
                f"is {count}; expected a number of tokens, 0 or more.", path=f"{path}.{key}"
            )
