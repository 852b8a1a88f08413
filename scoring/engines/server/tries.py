"""A request, made until it is answered: again after what may pass, never after what will not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from tokscore.dataset.errors import EngineError
from tokscore.scoring.engines.server.connection import FailedTryError
from tokscore.scoring.engines.server.dialects.dialect import AnswerError, BrokenAnswerError

if TYPE_CHECKING:
    from tenacity import RetryCallState

Result = TypeVar("Result")

# Answers to another question, one after the other, are taken for an accident of the wire so many times.
MAX_WRONG_ANSWERS = 12
# Short enough for some 50 tries in the two minutes that a request has.
LONGEST_WAIT_S = 4.0
FIRST_WAIT_S = 0.25
WRONG_ANSWER_WAIT_S, LONGEST_WRONG_ANSWER_WAIT_S = 0.02, 0.1


async def until_answered(ask: Callable[[int], Awaitable[Result]], retry_s: float) -> Result:
    """What `ask` returns, called again while it fails with what may pass.

    Args:
        ask: Called with the number of tries before.
        retry_s: Seconds for all tries.

    Raises:
        EngineError: No answer in that time; or what `ask` raises at once.
        AnswerError: The server answers another question, each time.
    """
    from tenacity import AsyncRetrying, retry_if_exception, stop_before_delay

    n_wrong = 0

    async def once() -> Result:
        nonlocal n_wrong
        try:
            return await ask(tries.statistics["attempt_number"] - 1)
        except (AnswerError, FailedTryError) as error:
            is_wrong = isinstance(error, AnswerError) and not isinstance(error, BrokenAnswerError)
            n_wrong = n_wrong + 1 if is_wrong else 0
            raise

    def may_pass(error: BaseException) -> bool:
        is_wrong = isinstance(error, AnswerError)
        return isinstance(error, FailedTryError) or (is_wrong and n_wrong < MAX_WRONG_ANSWERS)

    tries = AsyncRetrying(
        retry=retry_if_exception(may_pass),
        wait=_wait,
        stop=stop_before_delay(retry_s),
        reraise=True,
    )
    try:
        return await tries(once)
    except FailedTryError as error:
        n_tries = tries.statistics["attempt_number"]
        raise EngineError(
            f"{error.reason}\nGiven up after {n_tries} {'try' if n_tries == 1 else 'tries'} in {retry_s:g} s "
            "(`engine_arg` retry_s); run the same command again when the server is back."
        ) from error


def _wait(state: RetryCallState) -> float:
    """Seconds until the next try: those that the server asks for, or at random up to a limit that doubles."""
    from tenacity import wait_random_exponential

    error = state.outcome.exception() if state.outcome is not None else None
    if isinstance(error, FailedTryError) and error.wait_s is not None:
        return error.wait_s
    is_failed = isinstance(error, FailedTryError)
    first = FIRST_WAIT_S if is_failed else WRONG_ANSWER_WAIT_S
    longest = LONGEST_WAIT_S if is_failed else LONGEST_WRONG_ANSWER_WAIT_S
    return float(wait_random_exponential(multiplier=first, max=longest)(state))
