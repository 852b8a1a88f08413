"""The vLLM engine: prompt log-probabilities as arrays, on a GPU or on vLLM's CPU build."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tokscore.dataset.errors import ConversationError, EngineError, InputError
from tokscore.scoring.engines.causality import check_causality
from tokscore.scoring.engines.checkpoint.positions import switch_length_of
from tokscore.scoring.engines.contract import SequenceScores, TokenSequence, last_line
from tokscore.scoring.engines.row_checks import check_scores
from tokscore.scoring.engines.settings import EnginePath
from tokscore.scoring.engines.trees import difference_of, make_tree
from tokscore.scoring.engines.vllm.arguments import VllmSettings, check_config, vllm_settings
from tokscore.scoring.engines.vllm.model_check import check_weights, reason_against_sharing
from tokscore.scoring.engines.vllm.path_check import LIMIT, LIMIT_16_BIT, PLAIN_TOP_K, PathCheck, PathError
from tokscore.scoring.engines.vllm.reference import difference_from_transformers, uses_transformers
from tokscore.scoring.engines.vllm.requests import FLAT, FUSED, PATHS, Requests
from tokscore.scoring.engines.vllm.results import from_flat, from_tensors, keep_tensors, no_rows
from tokscore.scoring.engines.vllm.surroundings import (
    engine_errors,
    mend_llvmlite,
    quiet,
    set_environment,
    torch_kernels,
)
from tokscore.scoring.engines.vllm.worker.prompts import WorkerSettings

if TYPE_CHECKING:
    from tokscore.dataset.manifest import ModelIdentity, Setting
    from tokscore.scoring.engines.spec import EngineSpec

# Classes of vllm: the library is not typed for us.
Vllm = Any


class VllmEngine:
    """Scores with vLLM's own settings for speed, except those that make prompt logprobs wrong.

    It sets vLLM's environment variables where the user did not, for this process.

    Attributes:
        identity: What the manifest says of model and engine.
        max_length: Most tokens of one sequence.
        vocab_size: Width of the logits.
        temperature: Logits are divided by it.
        details: The path in use, the settings that follow from memory, and the self-test's difference.
        shares: Whether branches read what their trunks left in the prefix cache.
        requests: What it is given.
        extension: Of vLLM's worker class, what is called there.
        beside_bytes: Memory of the device that is left to others.
        has_torch_kernels: Whether torch's own kernels run on a CPU, as transformers has them.
    """

    extension = "tokscore.scoring.engines.vllm.worker.extension.ScoringExtension"
    beside_bytes = 0
    has_torch_kernels = False

    def __init__(self, spec: EngineSpec, longest: int) -> None:
        """Start vLLM, choose a path and test it.

        Raises:
            EngineError: vLLM cannot load or run the model, or no path passes the self-test.
            InputError: The weights do not fit the configuration, or this is no causal language model.
        """
        self.identity: ModelIdentity = spec.identity
        self.max_length = spec.model.max_length
        self.vocab_size = spec.model.vocab_size
        self.temperature = spec.settings.temperature
        self._spec = spec
        self._longest = longest
        self.shares = False
        self._reason = reason_against_sharing(spec) if spec.shares else None
        if self._reason is not None:
            self._spec = replace(spec, shares=False)
        self._unused_weights = check_weights(spec)
        self.details: Mapping[str, Setting] = {}
        reasons = []
        for path in (
            PATHS if spec.settings.engine_path is EnginePath.AUTO else (spec.settings.engine_path.value,)
        ):
            try:
                self._start(path)
            except (PathError, EngineError) as error:
                reasons.append(f"{path}: {error}")
                # Whatever went wrong with this vLLM, one that never started will not start again.
                if not isinstance(error, PathError):
                    raise
                self.close()
            except InputError:
                self.close()
                raise
            else:
                return
        raise EngineError("vLLM runs, but no way to take its logprobs works.\n" + "\n".join(reasons))

    def _start(self, path: str) -> None:
        """Start vLLM for one path and test it.

        Raises:
            EngineError: vLLM does not start.
            PathError: It does, but the path cannot be used.
        """
        spec = self._spec
        self.shares = False
        with quiet(), engine_errors("could not start"):
            settings = self._load(path)
            is_transformers = uses_transformers(self._engine.vllm_config.model_config)
            if is_transformers:
                self._llm.collective_rpc("tokscore_check_heads")
        self._path = path
        device = "cpu" if self._on_cpu else "gpu"
        self.requests = Requests(self._llm, self._longest, settings.batch_tokens, device)
        details: dict[str, Setting] = {
            "path": path,
            "batch_tokens": settings.batch_tokens,
            "head_dtype": spec.identity.dtype,
        }
        if path == FUSED:
            details |= self._install(settings)
            details["logits_bytes"] = settings.logits_bytes
            details["logits_rows"] = max(1, settings.logits_bytes // (4 * self.vocab_size))
        else:
            self._refuse_what_only_the_fused_path_can()
        if path != FLAT:
            keep_tensors()
        if self._switch_length is not None:
            # vLLM has one kind of positions for all sequences, by the longest that it is started for.
            details["positions"] = "long" if self._longest + 1 > self._switch_length else "short"
        if self._quantization is not None:
            details["quantization"] = self._quantization
        for name in ("tensor_parallel_size", "pipeline_parallel_size"):
            if settings.arguments[name] > 1:
                details[name] = settings.arguments[name]
        if "gpu_memory_utilization" in settings.arguments:
            details["gpu_memory_utilization"] = settings.arguments["gpu_memory_utilization"]
        difference = self._self_test(settings.batch_tokens)
        if difference is not None:
            details["self_test_max_difference"] = round(difference, 7)
        if self._unused_weights:
            details["unused_weights"] = self._unused_weights
        check_causality(
            self.score, self.vocab_size, self._longest, name=self.identity.name, dtype=self.identity.dtype
        )
        if is_transformers:
            difference = difference_from_transformers(spec, self.score, self._longest)
            details["model_code"] = "transformers"
            details["transformers_max_difference"] = round(difference, 7)
        if spec.shares:
            self._reason = self._check_sharing() if path == FUSED else f"the path {path} cannot"
            self.shares = self._reason is None
        if spec.shares or self._reason is not None:
            details["sharing"] = "yes" if self._reason is None else f"no: {self._reason}"
        self.details = details

    def _check_sharing(self) -> str | None:
        """Why branches cannot read the cache; None where a few of them come out as they do whole."""
        n_tokens = 4 * int(self._engine.vllm_config.cache_config.block_size) + 8
        probe = make_tree(self.vocab_size, self._longest, n_tokens)
        if probe is None:
            return "sequences are too short"
        whole = dict(self.score(probe))
        self.shares = True
        try:
            return difference_of(dict(self.score(probe)), whole, self.identity.dtype)
        finally:
            self.shares = False

    def _load(self, path: str) -> VllmSettings:
        set_environment()
        import torch
        from vllm import LLM
        from vllm.platforms import current_platform

        mend_llvmlite()
        self._on_cpu = bool(current_platform.is_cpu())
        gpu_bytes = None
        if self._on_cpu:
            if self._spec.settings.tensor_parallel_size * self._spec.settings.pipeline_parallel_size == 1:
                os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
            # Otherwise vLLM leaves torch one thread, which suits a server that decodes.
            os.environ.setdefault("OMP_NUM_THREADS", str(torch.get_num_threads()))
        else:
            gpu_bytes = int(current_platform.get_device_total_memory())
        settings = vllm_settings(
            self._spec,
            self._longest,
            stock=path != FUSED,
            gpu_bytes=gpu_bytes,
            beside_bytes=self.beside_bytes,
        )
        plain = torch_kernels() if self._on_cpu and self.has_torch_kernels else {}
        self._llm = LLM(**plain | settings.arguments | {"worker_extension_cls": self.extension})
        self._engine = self._llm.llm_engine
        caches = settings.arguments["enable_prefix_caching"]
        check_config(self._engine.vllm_config, self._longest, shares=caches)
        model_config = self._engine.vllm_config.model_config
        self._switch_length = switch_length_of(model_config.hf_text_config)
        self._quantization = None if model_config.quantization is None else str(model_config.quantization)
        return settings

    def _install(self, settings: VllmSettings) -> dict[str, str]:
        """Have the workers score; with logits in float32 where that is asked for or costs little."""
        wanted = self._spec.settings.head_dtype
        attempts = {"auto": (not self._on_cpu, False), "float32": (True,), "model": (False,)}[wanted]
        reason: Exception | None = None
        for in_float32 in dict.fromkeys(attempts):
            worker = WorkerSettings(
                self._spec.settings.top_k, self._spec.settings.temperature, in_float32, settings.logits_bytes
            )
            try:
                with quiet():
                    found: list[dict[str, str]] = self._llm.collective_rpc(
                        "tokscore_install", args=(tuple(worker),)
                    )
            except Exception as error:  # noqa: BLE001 (whatever a worker raises, and vLLM's own)
                reason = error
            else:
                return found[-1]
        raise PathError(last_line(reason)) if reason else AssertionError

    def _refuse_what_only_the_fused_path_can(self) -> None:
        if self._spec.settings.temperature != 1:
            raise PathError(
                f"vLLM's own step ignores the temperature for prompts, so it cannot score at "
                f"{self._spec.settings.temperature}; use `engine='transformers'`"
            )
        if self._spec.settings.head_dtype == "float32" and self._spec.identity.dtype != "float32":
            raise PathError("a float32 head needs the fused path")

    def _self_test(self, batch_tokens: int) -> float | None:
        """Largest difference between this path and vLLM's plain one; None where this is the plain one.

        Raises:
            PathError: Rows are missing, impossible, or differ by more than rounding explains.
        """
        limit = LIMIT if self.identity.dtype == "float32" else LIMIT_16_BIT
        check = PathCheck(self.vocab_size, self._spec.settings.temperature, limit)
        sequences = check.sequences(self._longest, batch_tokens)
        plain_top_k = min(self.vocab_size, max(PLAIN_TOP_K, self._spec.settings.top_k))
        try:
            here = dict(self.score(sequences))
            for sequence in sequences:
                scores = here[sequence.key]
                check_scores(
                    scores, sequence.n_rows, self._spec.settings.top_k, "self-test", sequence.targets()
                )
            if self._path == FLAT:
                return None
            plain = dict(self._score(sequences, FLAT, plain_top_k))
        except (EngineError, ConversationError) as error:
            raise PathError(str(error).partition("\n")[0]) from error
        return max(check.difference(here[key], plain[key]) for key in here)

    def score(self, sequences: Iterable[TokenSequence]) -> Iterator[tuple[int, SequenceScores]]:
        """Key and scores of every sequence, the longest of each window first.

        Raises:
            EngineError: vLLM failed, or returned other rows than asked for.
        """
        return self._score(sequences, self._path, self._spec.settings.top_k)

    def _score(
        self, sequences: Iterable[TokenSequence], path: str, top_k: int
    ) -> Iterator[tuple[int, SequenceScores]]:
        def add(sequence: TokenSequence, tree: str | None) -> str:
            return self.requests.add(sequence, path, top_k, tree)

        # Closed at once where a result is refused, so that what still runs is aborted.
        with closing(self.requests.run(sequences, path, add, shares=self.shares)) as results:
            for sequence, output in results:
                if output is None:
                    yield sequence.key, no_rows(sequence, top_k, is_fused=path == FUSED)
                else:
                    yield sequence.key, _scores_of(output, sequence, path, top_k)

    @property
    def n_computed(self) -> int:
        """Tokens that the model computed."""
        return self.requests.n_computed

    @property
    def n_rescored(self) -> int:
        """Sequences whose rows were in the cache, so that they were scored again without it."""
        return self.requests.n_rescored

    def close(self) -> None:
        """Stop vLLM and free the model."""
        from vllm.distributed import cleanup_dist_env_and_memory

        with quiet():
            self._engine.engine_core.shutdown()
            self.requests.close()
            del self._llm, self._engine
            cleanup_dist_env_and_memory()


def _scores_of(output: Vllm, sequence: TokenSequence, path: str, top_k: int) -> SequenceScores:
    if path == FLAT:
        return from_flat(output.prompt_logprobs, sequence, top_k)
    return from_tensors(output.prompt_logprobs, sequence, top_k, is_fused=path == FUSED)
