"""The vLLM engine: prompt log-probabilities from the offline `LLM`, on a GPU or on vLLM's CPU build."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any

import numpy as np

from tokscore.rendering.errors import EngineError
from tokscore.scoring.engine import SequenceScores, TokenSequence, last_line, windows

if TYPE_CHECKING:
    from tokscore.rendering.manifest import ModelIdentity, Setting
    from tokscore.scoring.load import EngineSpec

# vLLM makes the logits of a whole scheduled chunk at once and does not count them as memory it needs.
LOGITS_BYTES = 2**30
MIN_CHUNK_TOKENS = 512
MAX_CHUNK_TOKENS = 8_192
MIN_CACHE_BYTES = 2**28
# Chunks handed over at once: a GPU must not wait for Python, a CPU should report often.
CHUNKS_PER_BATCH = {"cpu": 1, "gpu": 16}

# Environment variables, where the user did not set them.
_SETTINGS = {
    "VLLM_NO_USAGE_STATS": "1",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
}

# Classes of vllm: the library is not typed for us.
Vllm = Any


class VllmEngine:
    """Scores with vLLM's own settings for speed, except those that make prompt logprobs wrong.

    It sets vLLM's environment variables where the user did not, for this process.

    Attributes:
        identity: What the manifest says of model and engine.
        max_length: Most tokens of one sequence.
        vocab_size: Width of the logits.
    """

    def __init__(self, spec: EngineSpec, longest: int) -> None:
        """Start vLLM.

        Raises:
            EngineError: vLLM cannot load or run the model.
        """
        self.identity: ModelIdentity = spec.identity
        self.max_length = spec.model.max_length
        self.vocab_size = spec.model.vocab_size
        self._longest = longest
        self.details: Mapping[str, Setting] = {"path": "flat"}
        self._top_k = spec.top_k
        with _quiet(), _engine_errors("could not start"):
            self._llm, self._parameters = self._start(spec)

    def _start(self, spec: EngineSpec) -> tuple[Vllm, Vllm]:
        for name, value in _SETTINGS.items():
            os.environ.setdefault(name, value)
        # vLLM wants room for one more token than it is given, past the model's maximum too.
        os.environ["VLLM_ALLOW_LONG_MAX_MODEL_LEN"] = "1"
        # On a CPU it complains that Triton is not there.
        logging.getLogger("torch._library.triton").setLevel(logging.ERROR)
        import torch
        from vllm import LLM, SamplingParams
        from vllm.platforms import current_platform

        on_cpu = bool(current_platform.is_cpu())
        chunk_tokens = LOGITS_BYTES // (4 * self.vocab_size)
        chunk_tokens = max(MIN_CHUNK_TOKENS, min(MAX_CHUNK_TOKENS, chunk_tokens))
        limits: dict[str, int] = {}
        if on_cpu:
            os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
            # Otherwise vLLM leaves torch one thread, which suits a server that decodes.
            os.environ.setdefault("OMP_NUM_THREADS", str(torch.get_num_threads()))
            # For one batch, and the longest sequence. VLLM_CPU_KVCACHE_SPACE wins over it.
            cache_tokens = self._longest + chunk_tokens
            cache_bytes = cache_tokens * spec.model.kv_width * (4 if spec.identity.dtype == "float32" else 2)
            limits["kv_cache_memory_bytes"] = max(MIN_CACHE_BYTES, cache_bytes)
        self._batch_tokens = chunk_tokens * CHUNKS_PER_BATCH["cpu" if on_cpu else "gpu"]
        llm = LLM(
            model=str(spec.model.path),
            dtype=spec.identity.dtype,
            max_model_len=self._longest + 1,
            max_logprobs=max(20, spec.top_k),
            max_num_batched_tokens=chunk_tokens,
            enable_chunked_prefill=True,
            # A cached prefix comes without logprobs, or with memory that nobody wrote.
            enable_prefix_caching=False,
            # Ids go in and come out; a tokenizer would decode every alternative.
            skip_tokenizer_init=True,
            generation_config="vllm",
            # Compiling takes a minute on a CPU, for a fifth of the time after it.
            enforce_eager=on_cpu,
            disable_log_stats=True,
            use_tqdm_on_load=False,
            **limits,
        )
        parameters = SamplingParams(
            max_tokens=1,
            temperature=0,
            prompt_logprobs=spec.top_k,
            flat_logprobs=True,
            detokenize=False,
        )
        return llm, parameters

    def score(self, sequences: Iterable[TokenSequence]) -> Iterator[tuple[int, SequenceScores]]:
        """Key and scores of every sequence.

        Raises:
            EngineError: vLLM failed, or returned other rows than asked for.
        """
        for window in windows(sequences, self._batch_tokens):
            for sequence in window:
                if len(sequence.token_ids) > self._longest:
                    raise EngineError(
                        f"sequence {sequence.key} has {len(sequence.token_ids)} tokens; "
                        f"vLLM was started for {self._longest}."
                    )
            prompts = [{"prompt_token_ids": sequence.token_ids.tolist()} for sequence in window]
            with _quiet(), _engine_errors("failed"):
                outputs = self._llm.generate(prompts, self._parameters, use_tqdm=False)
            for sequence, output in zip(window, outputs, strict=True):
                yield sequence.key, from_flat(output.prompt_logprobs, sequence, self._top_k)

    def close(self) -> None:
        """Stop vLLM and free the model."""
        from vllm.distributed import cleanup_dist_env_and_memory

        with _quiet():
            self._llm.llm_engine.engine_core.shutdown()
            del self._llm
            cleanup_dist_env_and_memory()


def from_flat(flat: Vllm, sequence: TokenSequence, top_k: int) -> SequenceScores:
    """Scores from vLLM's `FlatLogprobs`.

    Its lists hold nothing for position 0, then for each position the realised token and the top k.

    Raises:
        EngineError: Positions or alternatives are missing or belong to other tokens.
    """
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
    ids = np.array(flat.token_ids, np.int32).reshape(n_rows, width)
    logprobs = np.array(flat.logprobs, np.float32).reshape(n_rows, width)
    ranks = np.array(flat.ranks[::width], np.int32)
    if (ids[:, 0] != sequence.token_ids[1:]).any():
        raise EngineError(
            f"sequence {sequence.key}: vLLM returned logprobs of other tokens than it was given."
        )
    rows = slice(None) if sequence.wanted is None else sequence.wanted
    return SequenceScores(
        logprobs=logprobs[rows, 0],
        ranks=ranks[rows],
        top_ids=ids[rows, 1:],
        top_logprobs=logprobs[rows, 1:],
        entropy=None,
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Without Python warnings, and with stdout, which is for results, going to stderr.

    Redirecting the file descriptor covers what C++ and child processes print.
    """
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)


@contextmanager
def _engine_errors(what: str) -> Iterator[None]:
    """Any failure of vLLM as an engine error that ends with its last line."""
    try:
        yield
    except Exception as error:  # vLLM raises its own, pydantic's, torch's and built-in errors.
        raise EngineError(
            f"vLLM {what}: {last_line(error)}\n"
            "Set VLLM_LOGGING_LEVEL=INFO to see its log, or use --engine transformers."
        ) from error
