"""SGLang's own endpoint: `input_ids` in, `input_token_logprobs` out, from a start inside the prompt.

Source:
    SGLang, Sampling Parameters and Native APIs, https://docs.sglang.io/basic_usage/sampling_params.html
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from tokscore.scoring.engines.server.dialects.candidates import (
    check_count,
    check_first_is_null,
    check_ids,
    check_lengths,
    decode,
    listed_ids,
    numbers_of,
)
from tokscore.scoring.engines.server.dialects.dialect import (
    AnswerError,
    BrokenAnswerError,
    Dialect,
    Question,
    Rows,
)
from tokscore.scoring.engines.server.dialects.vllm import NULL


class _About(msgspec.Struct):
    prompt_tokens: int | None = None
    input_token_logprobs: msgspec.Raw = NULL
    input_top_logprobs: msgspec.Raw = NULL


class _Answer(msgspec.Struct):
    meta_info: _About


def request(_model: str, question: Question) -> dict[str, Any]:  # Any: JSON values
    """The JSON of a question; such a server has one model."""
    return {
        "input_ids": question.token_ids.tolist(),
        "sampling_params": {
            "max_new_tokens": 0,
            "temperature": question.temperature,
            "repetition_penalty": question.penalty,
        },
        "return_logprob": True,
        "logprob_start_len": question.first_row,
        "top_logprobs_num": question.top_k,
        "return_text_in_logprobs": False,
    }


def read(body: bytes, question: Question) -> Rows:
    """The rows in an answer: triples of logprob, id and text, for the tokens from the start on."""
    about = decode(body, _Answer).meta_info
    n = len(question.token_ids)
    if about.prompt_tokens is not None and about.prompt_tokens != n:
        check_count(about.prompt_tokens, n)
    if bytes(about.input_token_logprobs) == b"null":
        raise AnswerError("it returns no input_token_logprobs")
    numbers = numbers_of(about.input_token_logprobs, "input_token_logprobs")
    if (numbers.counts != 3).any():
        raise BrokenAnswerError("its input_token_logprobs are no triples of logprob, id and text")
    logprobs, ids, _ = numbers.values.reshape(-1, 3).T
    check_ids(ids, question.token_ids[question.first_row :])
    check_first_is_null(bool(np.isnan(logprobs[0])))
    n_rows, top_k = len(ids) - 1, question.top_k
    top_ids, top_logprobs = np.empty((n_rows, 0)), np.empty((n_rows, 0))
    if top_k and n_rows:
        listed = numbers_of(about.input_top_logprobs, "input_top_logprobs")
        check_count(len(listed.counts), n_rows + 1)
        # For the first there is null, or an empty list.
        first = listed.starts[1]
        if (listed.counts[1:] % 3).any():
            raise BrokenAnswerError("its input_top_logprobs are no triples of logprob, id and text")
        check_lengths(listed.counts[1:] // 3, top_k, with_token=False)
        top_logprobs, top_ids, _ = np.moveaxis(listed.values[first:].reshape(n_rows, top_k, 3), 2, 0)
        if (top_logprobs[:, 1:] > top_logprobs[:, :-1]).any():
            raise AnswerError("its lists of the most likely ids are in no descending order")
    return Rows(
        logprobs[1:].astype(np.float32),
        None,
        listed_ids(top_ids),
        np.ascontiguousarray(top_logprobs, np.float32),
    )


DIALECT = Dialect(
    "sglang",
    "/generate",
    request,
    read,
    version_paths=("/server_info", "/get_server_info"),
    about_paths=("/model_info", "/get_model_info"),
    n_generated=0,
    about="SGLang's /generate with input logprobs",
)
