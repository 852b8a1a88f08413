"""vLLM's OpenAI-compatible completions: token ids in, `prompt_logprobs` out.

Source:
    vLLM, entrypoints/openai/completion/protocol.py: `CompletionRequest` and `CompletionResponseChoice`.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from tokscore.scoring.engines.server.dialects.candidates import (
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
from tokscore.scoring.engines.server.dialects.decoding import KEY, LOGPROB, RANK
from tokscore.scoring.engines.server.dialects.dialect import (
    AnswerError,
    BrokenAnswerError,
    Dialect,
    Question,
    Rows,
)

NULL = msgspec.Raw(b"null")


class _Choice(msgspec.Struct):
    prompt_logprobs: msgspec.Raw = NULL
    prompt_token_ids: msgspec.Raw = NULL


class _Answer(msgspec.Struct):
    choices: list[_Choice]


def sampling(question: Question) -> dict[str, Any]:  # Any: JSON values
    """What vLLM is told of the one token that it generates behind the prompt."""
    return {
        "max_tokens": 1,
        "temperature": question.temperature,
        "repetition_penalty": question.penalty,
        "prompt_logprobs": question.top_k,
    }


def request(model: str, question: Question) -> dict[str, Any]:  # Any: JSON values
    """The JSON of a question."""
    return {
        "model": model,
        "prompt": question.token_ids.tolist(),
        "return_token_ids": True,
        **sampling(question),
    }


def read(body: bytes, question: Question) -> Rows:
    """The rows in an answer."""
    answer = decode(body, _Answer)
    if len(answer.choices) != 1:
        raise BrokenAnswerError(f"it returns {len(answer.choices)} choices for one prompt")
    return rows_of_prompt(answer.choices[0].prompt_logprobs, answer.choices[0].prompt_token_ids, question)


def rows_of_prompt(text: msgspec.Raw, ids: msgspec.Raw, question: Question) -> Rows:
    """The rows in vLLM's `prompt_logprobs`: null, then a mapping of ids for each token.

    Args:
        text: `[null, {"17": {"logprob": -1.5, "rank": 3, "decoded_token": " a"}, ...}, ...]`.
        ids: What the server took the prompt for; null where it does not say.
        question: What was asked.

    Raises:
        AnswerError: They do not belong to the question.
    """
    if bytes(text) == b"null":
        raise AnswerError("it returns no prompt_logprobs")
    if bytes(ids) != b"null":
        check_ids(numbers_of(ids, "prompt_token_ids").values, question.token_ids)
    numbers = numbers_of(text, "prompt_logprobs")
    n, counts = len(question.token_ids), numbers.counts
    check_count(len(counts), n)
    check_first_is_null(counts[0] == 1 and bool(np.isnan(numbers.values[0])))
    values, kinds = numbers.values[1:], numbers.kinds[1:]
    if len(values) % 3 or (counts[1:] % 3).any() or (kinds.reshape(-1, 3) != (KEY, LOGPROB, RANK)).any():
        raise BrokenAnswerError("its prompt_logprobs are no mappings of ids to logprob and rank")
    lengths = counts[1:] // 3
    check_lengths(lengths, question.top_k, with_token=True)
    ids_found, logprobs, ranks = (
        table(column, lengths, question.top_k + 1, fill)
        for column, fill in zip(values.reshape(-1, 3).T, (-1.0, -np.inf, np.nan), strict=True)
    )
    rows = slice(question.first_row, None)
    candidates = Candidates(ids_found[rows], logprobs[rows], ranks[rows])
    return rows_of(candidates, question.targets, question.top_k)


DIALECT = Dialect(
    "vllm",
    "/v1/completions",
    request,
    read,
    version_paths=("/version",),
    about_paths=(),
    n_generated=1,
    about="vLLM's completions with prompt_logprobs",
)
