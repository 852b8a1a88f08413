"""vLLM's results for a prompt, as score arrays."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tokscore.dataset.errors import EngineError
from tokscore.scoring.engines.contract import SequenceScores, TokenSequence

# Objects of vLLM, which has no types for us.
Vllm = Any


# Key of a request's `SamplingParams.extra_args` whose tensors are kept.
KEEP = "tokscore_keep"


class KeptTensors(NamedTuple):
    """The tensors of one prompt as they reach vLLM's front end, in place of its `prompt_logprobs`.

    Attributes:
        tensors: vLLM's `LogprobsTensors`.
    """

    tensors: Vllm


def keep_tensors() -> None:
    """Have vLLM's front end keep the tensors of requests that carry `KEEP`, where it would make objects.

    The change is made once a process; requests without it are not touched.
    """
    from vllm.v1.engine.logprobs import LogprobsProcessor

    if hasattr(LogprobsProcessor, "tokscore_stock_update"):
        return
    make, update = LogprobsProcessor.from_new_request.__func__, LogprobsProcessor._update_prompt_logprobs

    def from_new_request(cls: Vllm, tokenizer: Vllm, request: Vllm) -> Vllm:
        processor = make(cls, tokenizer, request)
        processor.tokscore_keeps = KEEP in (request.sampling_params.extra_args or {})
        return processor

    def update_prompt_logprobs(self: Vllm, tensors: Vllm) -> None:
        if getattr(self, "tokscore_keeps", False):
            self.prompt_logprobs = KeptTensors(tensors)
        else:
            update(self, tensors)

    LogprobsProcessor.tokscore_stock_update = update
    LogprobsProcessor.from_new_request = classmethod(from_new_request)
    LogprobsProcessor._update_prompt_logprobs = update_prompt_logprobs


def from_tensors(kept: Vllm, sequence: TokenSequence, top_k: int, *, is_fused: bool) -> SequenceScores:
    """Scores from the tensors of one prompt.

    Args:
        kept: What `keep_tensors` left.
        sequence: What was asked for.
        top_k: Alternatives asked for.
        is_fused: Whether only wanted rows were made, with the entropy behind the logprobs.

    Raises:
        EngineError: Rows or alternatives are missing or belong to other tokens.
    """
    if not is_fused:
        _refuse_what_only_the_fused_path_can(sequence, "tensors")
    n_rows = sequence.n_rows if is_fused else len(sequence.token_ids) - 1
    if not isinstance(kept, KeptTensors):
        raise EngineError(f"sequence {sequence.key}: vLLM returned no logprobs; expected {n_rows} rows.")
    ids, logprobs, ranks = (column.numpy() for column in kept.tensors[:3])
    at_ids, width = sequence.at_rows(), top_k + 1
    n_given = 0 if at_ids is None else at_ids.shape[1]
    shapes = (ids.shape, logprobs.shape, ranks.shape)
    expected = ((n_rows, width + is_fused), (n_rows, width + is_fused + n_given), (n_rows,))
    if shapes != expected:
        raise EngineError(
            f"sequence {sequence.key}: vLLM returned arrays of shapes {shapes}; expected {expected}."
        )
    if not is_fused and sequence.wanted is not None:
        ids, logprobs, ranks = ids[sequence.wanted], logprobs[sequence.wanted], ranks[sequence.wanted]
    _check_tokens(ids[:, 0], sequence)
    if is_fused and (ids[:, width] != sequence.positions()).any():
        raise EngineError(f"sequence {sequence.key}: vLLM returned rows of other positions than asked for.")
    # Copies, so that no view keeps the rest alive.
    return SequenceScores(
        logprobs=logprobs[:, 0].astype(np.float32, copy=True),
        ranks=ranks.astype(np.int32, copy=True),
        top_ids=np.ascontiguousarray(ids[:, 1:width], np.int32),
        top_logprobs=np.ascontiguousarray(logprobs[:, 1:width], np.float32),
        entropy=logprobs[:, width].astype(np.float32, copy=True) if is_fused else None,
        at_ids=at_ids,
        at_logprobs=None if at_ids is None else np.ascontiguousarray(logprobs[:, width + 1 :], np.float32),
    )


def from_flat(flat: Vllm, sequence: TokenSequence, top_k: int) -> SequenceScores:
    """Scores from vLLM's `FlatLogprobs`.

    Its lists hold nothing for position 0, then for each position the realised token and the top k.

    Raises:
        EngineError: Positions or alternatives are missing or belong to other tokens.
    """
    _refuse_what_only_the_fused_path_can(sequence, "flat")
    n_rows, width = len(sequence.token_ids) - 1, top_k + 1
    found = None if flat is None else len(flat.start_indices)
    if found != n_rows + 1:
        raise EngineError(
            f"sequence {sequence.key}: vLLM returned logprobs for {found} positions of {n_rows + 1} tokens."
        )
    starts = np.array(flat.start_indices[1:], np.int64)
    if len(flat.logprobs) != n_rows * width or (starts != np.arange(n_rows) * width).any():
        raise EngineError(
            f"sequence {sequence.key}: vLLM returned {len(flat.logprobs)} logprobs for "
            f"{n_rows + 1} tokens; expected {n_rows} x {width}."
        )
    rows = slice(None) if sequence.wanted is None else sequence.wanted
    ids = np.array(flat.token_ids, np.int32).reshape(n_rows, width)[rows]
    logprobs = np.array(flat.logprobs, np.float32).reshape(n_rows, width)[rows]
    _check_tokens(ids[:, 0], sequence)
    return SequenceScores(
        logprobs=logprobs[:, 0],
        ranks=np.array(flat.ranks[::width], np.int32)[rows],
        top_ids=ids[:, 1:],
        top_logprobs=logprobs[:, 1:],
        entropy=None,
    )


def no_rows(sequence: TokenSequence, top_k: int, *, is_fused: bool) -> SequenceScores:
    """Scores of a sequence of which nothing is wanted; arguments as of `from_tensors`."""
    at_ids = sequence.at_rows()
    return SequenceScores(
        logprobs=np.empty(0, np.float32),
        ranks=np.empty(0, np.int32),
        top_ids=np.empty((0, top_k), np.int32),
        top_logprobs=np.empty((0, top_k), np.float32),
        entropy=np.empty(0, np.float32) if is_fused else None,
        at_ids=at_ids,
        at_logprobs=None if at_ids is None else np.empty(at_ids.shape, np.float32),
    )


def lacks_rows(kept: Vllm, sequence: TokenSequence) -> bool:
    """Whether the fused path computed only a part of the rows: the others were in the cache."""
    if not isinstance(kept, KeptTensors):
        return True
    positions = kept.tensors[0].numpy()[:, -1]
    return len(positions) < sequence.n_rows or bool((positions != sequence.positions()).any())


def _refuse_what_only_the_fused_path_can(sequence: TokenSequence, path: str) -> None:
    if sequence.at_ids is not None:
        raise EngineError(
            f"vLLM's {path} path gives no logprobs at given ids (`at`). Use `engine_path='fused'` or "
            "`engine='transformers'`."
        )
    if sequence.others is not None:
        raise EngineError(
            f"sequence {sequence.key}: only the fused path scores other ids than a prompt's own."
        )


def _check_tokens(ids: np.ndarray[Any, np.dtype[Any]], sequence: TokenSequence) -> None:
    if (ids != sequence.targets()).any():
        raise EngineError(
            f"sequence {sequence.key}: vLLM returned logprobs of other tokens than it was given."
        )
