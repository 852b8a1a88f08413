"""What a kind of server is: a path, a request and a reading of the answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Question(NamedTuple):
    """What is asked of a server: rows for the tokens of one prompt.

    Attributes:
        token_ids: int32 [n], all of the prompt.
        top_k: Most likely ids asked for.
        first_row: Rows before it may be left out; row t is about token t+1.
        temperature: Of a token to be generated, which must not change the prompt's logprobs.
        penalty: For repetition, likewise; 1 is none.
    """

    token_ids: NDArray[np.int32]
    top_k: int
    first_row: int = 0
    temperature: float = 1.0
    penalty: float = 1.0

    @property
    def targets(self) -> NDArray[np.int32]:
        """The tokens that must have rows."""
        return self.token_ids[self.first_row + 1 :]


class Rows(NamedTuple):
    """What an answer says of the tokens behind `Question.first_row`, a row each.

    Attributes:
        logprobs: float32 [rows].
        ranks: int32 [rows]; None where the server gives none.
        top_ids: int32 [rows, k].
        top_logprobs: float32 [rows, k].
    """

    logprobs: NDArray[np.float32]
    ranks: NDArray[np.int32] | None
    top_ids: NDArray[np.int32]
    top_logprobs: NDArray[np.float32]


class AnswerError(Exception):
    """An answer that is none to the question; its text says what the server does."""


class BrokenAnswerError(AnswerError):
    """An answer that is no whole JSON of the form that its kind of server gives."""


class Dialect(NamedTuple):
    """A kind of server.

    Attributes:
        name: As `server_kind` says it.
        path: Where questions go.
        request: The JSON of a question to a model of this name.
        read: The rows in an answer; raises an `AnswerError` where it does not belong to the question.
        version_paths: Where the server says its version, under "version".
        about_paths: Where it describes its model.
        n_generated: Tokens that it generates behind the prompt, so that the prompt may be that much shorter
            than the model's maximum.
        about: One line for users.
    """

    name: str
    path: str
    request: Callable[[str, Question], dict[str, Any]]  # Any: JSON values
    read: Callable[[bytes, Question], Rows]
    version_paths: tuple[str, ...]
    about_paths: tuple[str, ...]
    n_generated: int
    about: str
