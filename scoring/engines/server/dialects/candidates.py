"""Lists of candidates, in which a realised token stands somewhere, as rows of scores."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec
import numpy as np

from tokscore.scoring.engines.server.dialects.decoding import NotNumbersError, Numbers, read_numbers
from tokscore.scoring.engines.server.dialects.dialect import AnswerError, BrokenAnswerError, Rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

Form = TypeVar("Form")

# JSON has no -inf; vLLM and those that take after it write this.
NO_PROBABILITY = -9999.0


def decode(body: bytes, form: type[Form]) -> Form:
    """The answer, of which lists of numbers are left as they are.

    Raises:
        BrokenAnswerError: It is no JSON, or of another form.
    """
    try:
        return msgspec.json.decode(body, type=form)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BrokenAnswerError(f"its answer of {len(body):,} bytes cannot be read: {error}") from error


def numbers_of(text: msgspec.Raw, what: str) -> Numbers:
    """The numbers of one list.

    Raises:
        BrokenAnswerError: It is none.
    """
    try:
        return read_numbers(memoryview(text))
    except NotNumbersError as error:
        raise BrokenAnswerError(f"{what} cannot be read: {error}") from error


def check_ids(found: NDArray[np.float64], sent: NDArray[np.int32]) -> None:
    """Compare the ids of an answer with those that were sent.

    Raises:
        AnswerError: They differ; one in front is named for itself.
    """
    n = len(sent)
    if len(found) == n + 1 and (found[1:] == sent).all():
        raise AnswerError(
            f"it adds a token in front, id {found[0]:.0f}: expected the {n} ids that were sent, without a BOS"
        )
    check_count(len(found), n)
    if (found != sent).any():
        at = int((found != sent).nonzero()[0][0])
        raise AnswerError(
            f"it returns other ids than it was sent: {found[at]:.0f} for {sent[at]} at token {at}"
        )


def check_count(n_found: int, n_sent: int) -> None:
    """Compare the number of positions of an answer with that of the tokens sent.

    Raises:
        AnswerError: They differ.
    """
    if n_found < n_sent:
        raise AnswerError(
            f"it returns rows for {n_found} of {n_sent} tokens, as servers do that leave out what they cached"
        )
    if n_found == n_sent + 1:
        raise AnswerError(f"it adds a token: rows for {n_found} tokens, {n_sent} were sent")
    if n_found > n_sent:
        raise AnswerError(f"it returns rows for {n_found} tokens, {n_sent} were sent")


def check_first_is_null(is_null: bool) -> None:
    """Raise an `AnswerError` where the first token of a prompt has a logprob."""
    if not is_null:
        raise AnswerError(
            "it gives the first token a logprob, which has nothing before it: it adds a token in front, such "
            "as a BOS"
        )


def listed_ids(found: NDArray[np.float64]) -> NDArray[np.int32]:
    """The ids of lists as integers.

    Raises:
        AnswerError: One is none.
    """
    is_wrong = ~((found >= 0) & (found <= np.iinfo(np.int32).max) & (found == np.floor(found)))
    if is_wrong.any():
        raise AnswerError(f"its lists of the most likely ids hold {found[is_wrong][0]:.12g}, which is no id")
    return np.ascontiguousarray(found, np.int32)


class Candidates(NamedTuple):
    """Candidates of each row, in the order of the answer.

    Attributes:
        ids: float64 [rows, k + 1]; -1 where there are fewer.
        logprobs: float64 [rows, k + 1].
        ranks: float64 [rows, k + 1]; None where the server gives none.
    """

    ids: NDArray[np.float64]
    logprobs: NDArray[np.float64]
    ranks: NDArray[np.float64] | None


def table(
    values: NDArray[np.float64], lengths: NDArray[np.int64], width: int, fill: float
) -> NDArray[np.float64]:
    """The values of rows of several lengths, [rows, width]."""
    filled = np.full((len(lengths), width), fill)
    filled[np.arange(width) < lengths[:, None]] = values
    return filled


def check_lengths(lengths: NDArray[np.int64], top_k: int, *, with_token: bool) -> None:
    """Raise an `AnswerError` where lists are shorter or longer than asked for.

    Args:
        lengths: Candidates of each row.
        top_k: Asked for.
        with_token: Whether the realised token is added where it is none of them.
    """
    most = top_k + with_token
    if (lengths < max(top_k, with_token)).any():
        row = int((lengths < max(top_k, with_token)).nonzero()[0][0])
        raise AnswerError(
            f"it cuts lists of the most likely ids: {lengths[row]} of {top_k} at token {row + 1}"
            if top_k
            else f"it leaves out token {row + 1}"
        )
    if (lengths > most).any():
        raise AnswerError(f"it returns {lengths.max()} candidates for a token; {top_k} were asked for")


def rows_of(candidates: Candidates, targets: NDArray[np.int32], top_k: int) -> Rows:
    """The realised token of each row, and the most likely ids in descending order.

    Args:
        candidates: The realised token, and the most likely ids in descending order; once where it is one of
            them, so that there is one fewer.
        targets: Realised tokens, int32 [rows].
        top_k: Most likely ids asked for.

    Raises:
        AnswerError: A row is of another token, or its list is in another order.
    """
    ids, ranks = candidates.ids, candidates.ranks
    logprobs = np.where(candidates.logprobs <= NO_PROBABILITY, -np.inf, candidates.logprobs)
    is_target = ids == targets[:, None]
    if (is_target.sum(1) != 1).any():
        row = int((is_target.sum(1) != 1).nonzero()[0][0])
        raise AnswerError(
            f"it returns other ids than it was sent: none is {targets[row]}, the token of row {row}"
            if not is_target[row].any()
            else f"it lists the token of row {row} twice"
        )
    with_token_last = np.argsort(is_target, axis=1, kind="stable")[:, :top_k]
    others = np.take_along_axis(logprobs, with_token_last, 1)
    is_there = np.take_along_axis(ids, with_token_last, 1) >= 0
    is_there &= ~np.take_along_axis(is_target, with_token_last, 1)
    if ((others[:, 1:] > others[:, :-1]) & is_there[:, 1:] & is_there[:, :-1]).any():
        raise AnswerError("its lists of the most likely ids are in no descending order")
    # Behind everything where there is no candidate.
    by_logprob = np.argsort(np.where(ids < 0, np.inf, -logprobs), axis=1, kind="stable")[:, :top_k]
    is_listed = (ids >= 0).sum(1) <= top_k
    order = np.where(is_listed[:, None], by_logprob, with_token_last)
    return Rows(
        logprobs[is_target].astype(np.float32),
        None if ranks is None or np.isnan(ranks[is_target]).any() else ranks[is_target].astype(np.int32),
        listed_ids(np.take_along_axis(ids, order, 1)),
        np.ascontiguousarray(np.take_along_axis(logprobs, order, 1), np.float32),
    )
