"""vLLM's token-in token-out endpoint.

Source:
    vLLM, entrypoints/scale_out/token_in_token_out/protocol.py: `GenerateRequest` and `GenerateResponseBase`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tokscore.scoring.engines.server.dialects.candidates import decode
from tokscore.scoring.engines.server.dialects.dialect import Dialect, Question, Rows
from tokscore.scoring.engines.server.dialects.vllm import NULL, rows_of_prompt, sampling


class _Answer(msgspec.Struct):
    prompt_logprobs: msgspec.Raw = NULL
    prompt_token_ids: msgspec.Raw = NULL


def request(model: str, question: Question) -> dict[str, Any]:  # Any: JSON values
    """The JSON of a question."""
    # The text of candidates is of no use, and takes the server as long as their logprobs.
    return {
        "model": model,
        "token_ids": question.token_ids.tolist(),
        "sampling_params": sampling(question) | {"detokenize": False},
        "return_token_ids": True,
    }


def read(body: bytes, question: Question) -> Rows:
    """The rows in an answer."""
    answer = decode(body, _Answer)
    return rows_of_prompt(answer.prompt_logprobs, answer.prompt_token_ids, question)


DIALECT = Dialect(
    "vllm-tokens",
    "/inference/v1/generate",
    request,
    read,
    version_paths=("/version",),
    about_paths=(),
    n_generated=1,
    about="vLLM's token-in token-out endpoint",
)
