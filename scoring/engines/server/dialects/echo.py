"""Completions that echo the prompt with its logprobs, as OpenAI's first ones did.

Servers of this kind name tokens by their text. vLLM's writes "token_id:17" where it is asked to; with others
there is no telling which id a candidate is, so that they give logprobs alone.

Source:
    OpenAI, API reference, Create completion (legacy): `echo` and `logprobs`.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from tokscore.scoring.engines.server.dialects.candidates import (
    NO_PROBABILITY,
    Candidates,
    check_count,
    check_first_is_null,
    check_ids,
    check_lengths,
    decode,
    numbers_of,
    rows_of,
    table,
)
from tokscore.scoring.engines.server.dialects.decoding import KEY, VALUE
from tokscore.scoring.engines.server.dialects.dialect import (
    AnswerError,
    BrokenAnswerError,
    Dialect,
    Question,
    Rows,
)
from tokscore.scoring.engines.server.dialects.vllm import NULL


class _Logprobs(msgspec.Struct):
    tokens: msgspec.Raw = NULL
    token_logprobs: msgspec.Raw = NULL
    top_logprobs: msgspec.Raw = NULL


class _Choice(msgspec.Struct):
    logprobs: _Logprobs | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice]
    usage: _Usage | None = None


def request(model: str, question: Question) -> dict[str, Any]:  # Any: JSON values
    """The JSON of a question. Fields beyond OpenAI's own are left out where they change nothing."""
    wanted: dict[str, Any] = {
        "model": model,
        "prompt": question.token_ids.tolist(),
        # Some take 0 for no limit.
        "max_tokens": 1,
        "echo": True,
        # Some take 0 for no logprobs.
        "logprobs": max(1, question.top_k),
        "temperature": question.temperature,
        "return_tokens_as_token_ids": True,
    }
    return wanted if question.penalty == 1 else wanted | {"repetition_penalty": question.penalty}


def read(body: bytes, question: Question) -> Rows:
    """The rows in an answer, which may end with the token that was generated."""
    answer = decode(body, _Answer)
    n, top_k = len(question.token_ids), question.top_k
    found = answer.choices[0].logprobs if len(answer.choices) == 1 else None
    if found is None or bytes(found.token_logprobs) == b"null":
        raise AnswerError("it returns no logprobs of the prompt")
    n_counted = None if answer.usage is None else answer.usage.prompt_tokens
    if n_counted is not None:
        check_count(n_counted, n)
    logprobs = numbers_of(found.token_logprobs, "token_logprobs")
    ids = numbers_of(found.tokens, "tokens")
    if (logprobs.counts != 1).any() or (ids.counts != 1).any():
        raise BrokenAnswerError("its tokens or token_logprobs are no plain lists")
    has_ids = not np.isnan(ids.values).any()
    if not has_ids and n_counted is None:
        raise AnswerError("it says neither the ids nor the number of the tokens that it scored")
    if not has_ids and top_k:
        raise AnswerError(
            "it names tokens by their text, so that the ids of a list cannot be told; ask for none: `top_k=0`"
        )
    # One may follow that was generated.
    if not (n <= len(ids.values) <= n + 1 and len(ids.values) == len(logprobs.values)):
        check_count(min(len(ids.values), len(logprobs.values)), n)
        raise AnswerError(f"it returns {len(ids.values)} tokens and {len(logprobs.values)} logprobs for {n}")
    if has_ids:
        check_ids(
            ids.values if len(ids.values) == n or _is_moved(ids.values, question) else ids.values[:n],
            question.token_ids,
        )
    check_first_is_null(bool(np.isnan(logprobs.values[0])))
    rows = slice(question.first_row + 1, n)
    values = np.where(logprobs.values <= NO_PROBABILITY, -np.inf, logprobs.values)[rows].astype(np.float32)
    if not top_k:
        return Rows(
            values, None, np.empty((len(values), 0), np.int32), np.empty((len(values), 0), np.float32)
        )
    return rows_of(_candidates(found.top_logprobs, question), question.targets, top_k)


def _is_moved(ids: np.ndarray[Any, np.dtype[np.float64]], question: Question) -> bool:
    return bool((ids[1:] == question.token_ids).all() and ids[0] != question.token_ids[0])


def _candidates(text: msgspec.Raw, question: Question) -> Candidates:
    """The lists of the tokens behind the first row."""
    n, top_k = len(question.token_ids), question.top_k
    listed = numbers_of(text, "top_logprobs")
    if len(listed.counts) < n:
        check_count(len(listed.counts), n)
    start, stop = listed.starts[question.first_row + 1], listed.starts[n]
    counts = listed.counts[question.first_row + 1 : n]
    values, kinds = listed.values[start:stop], listed.kinds[start:stop]
    if (counts % 2).any() or (kinds.reshape(-1, 2) != (KEY, VALUE)).any():
        raise BrokenAnswerError("its top_logprobs are no mappings of ids to logprobs")
    check_lengths(counts // 2, top_k, with_token=True)
    ids, logprobs = (
        table(column, counts // 2, top_k + 1, fill)
        for column, fill in zip(values.reshape(-1, 2).T, (-1.0, -np.inf), strict=True)
    )
    return Candidates(ids, logprobs, None)


DIALECT = Dialect(
    "echo",
    "/v1/completions",
    request,
    read,
    version_paths=("/version",),
    about_paths=(),
    n_generated=1,
    about="completions that echo the prompt with logprobs",
)
