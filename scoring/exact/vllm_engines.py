"""vLLM running the first of two models, which keeps its hidden states, and the second, which compares."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tokscore.dataset.errors import EngineError
from tokscore.scoring.engines.contract import TokenSequence
from tokscore.scoring.engines.vllm.engine import VllmEngine
from tokscore.scoring.engines.vllm.requests import FUSED
from tokscore.scoring.engines.vllm.results import KeptTensors
from tokscore.scoring.engines.vllm.surroundings import engine_errors, quiet
from tokscore.scoring.exact.divergences import BLOCK_BYTES, ExactTokens

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokscore.scoring.engines.spec import EngineSpec

    FloatArray = NDArray[np.float64]

# Blocks of float64 that a comparison holds at a time on a GPU, and the logits that they are made of.
_N_BLOCKS = 12
# The same rows through the same head differ by rounding, in nats at temperature 1: at most, and on average.
MAX_HEAD_GAP, MEAN_HEAD_GAP = 2e-4, 2e-5
# Logits in 16 bits, which round to 1/8 from 16 on.
MAX_HEAD_GAP_16_BIT, MEAN_HEAD_GAP_16_BIT = 0.25, 0.005


class Probe(NamedTuple):
    """What the first model said of the first rows that are kept.

    Attributes:
        token_ids: The realised tokens.
        logprobs: Their logprobs in that run, in nats.
    """

    token_ids: list[int]
    logprobs: list[float]


class _PlacedEngine(VllmEngine):
    """The key of a sequence is the place of its first row among the kept ones."""

    extension = "tokscore.scoring.exact.workers.ExactExtension"

    def __init__(self, spec: EngineSpec, longest: int) -> None:
        # In 16 bits the order of sums makes no difference that rounding does not make.
        self.has_torch_kernels = spec.identity.dtype == "float32"
        super().__init__(spec, longest)

    def _call(self, method: str, *arguments: object) -> list[Any]:  # Any: what the method returns
        with quiet(), engine_errors("failed"):
            found: list[Any] = self._llm.collective_rpc(method, args=arguments)
        return found

    def _worker_settings(self) -> list[object]:
        """The fields of `WorkerSettings`, with the head as it was installed at the start."""
        in_float32 = self.details["head_dtype"] == "float32"
        return [0, self.temperature, in_float32, self.details["logits_bytes"]]

    def _rows(self, sequences: Iterable[TokenSequence]) -> Iterator[tuple[int, FloatArray]]:
        """Key and numbers of every sequence, a row for each wanted token."""

        def add(sequence: TokenSequence, tree: str | None) -> str:
            return self.requests.add(sequence, FUSED, 0, tree, first=sequence.key)

        with closing(self.requests.run(sequences, FUSED, add)) as results:
            for sequence, output in results:
                kept = None if output is None else output.prompt_logprobs
                if not isinstance(kept, KeptTensors):
                    raise EngineError(f"sequence {sequence.key}: vLLM returned nothing for its rows.")
                ids, values = kept.tensors[0].numpy(), kept.tensors[1].numpy()
                if not np.array_equal(ids, np.stack([sequence.targets(), sequence.positions()], axis=1)):
                    raise EngineError(
                        f"sequence {sequence.key}: vLLM returned rows of other tokens than it was given."
                    )
                yield sequence.key, values


class KeepingEngine(_PlacedEngine):
    """Runs the first model; its last hidden states and its head go to files."""

    def __init__(self, spec: EngineSpec, longest: int, states: str, head: str) -> None:
        """Start vLLM.

        Args:
            spec: A plan for vLLM.
            longest: Most tokens of a sequence.
            states: Path of an open file for the hidden states.
            head: Likewise, for the head.

        Raises:
            EngineError: As `VllmEngine`.
        """
        super().__init__(spec, longest)
        self._call("tokscore_keep", self._worker_settings(), states, head)

    def keep(self, sequences: Iterable[TokenSequence]) -> Iterator[tuple[int, FloatArray]]:
        """Key and logprobs of every sequence, NaN but for the first rows.

        Raises:
            EngineError: vLLM failed, the disk is full, or the head cannot be kept.
        """
        for key, values in self._rows(sequences):
            yield key, values[:, 0]


class ComparingEngine(_PlacedEngine):
    """Runs the second model, with the head of the first beside it."""

    def __init__(
        self, spec: EngineSpec, longest: int, states: str, head: str, probe: Probe, alphas: Sequence[float]
    ) -> None:
        """Start vLLM, load the head, and hold it against what the first run said.

        Args:
            spec: A plan for vLLM.
            longest: Most tokens of a sequence.
            states: Path of the open file with hidden states of the first model.
            head: Likewise, with its head.
            probe: Of the first rows.
            alphas: Weights of the teacher in the mixtures.

        Raises:
            EngineError: As `VllmEngine`; or the head cannot be loaded, or gives other logprobs.
        """
        self.beside_bytes = os.stat(head).st_size + _N_BLOCKS * BLOCK_BYTES["cuda"]  # noqa: PTH116 (of /proc)
        super().__init__(spec, longest)
        self._call("tokscore_compare", self._worker_settings(), states, head, list(alphas))
        [found] = self._call("tokscore_probe", probe.token_ids)
        check_head(found, probe.logprobs, self)

    def compare(self, sequences: Iterable[TokenSequence]) -> Iterator[tuple[int, ExactTokens]]:
        """Key and values of every sequence, a row for each wanted token.

        Raises:
            EngineError: vLLM failed, or hidden states are missing.
        """
        for key, values in self._rows(sequences):
            yield key, ExactTokens.of_packed(values)


def check_head(found: Sequence[float], believed: Sequence[float], engine: VllmEngine) -> None:
    """Hold logprobs by a head that was loaded beside a model against those of the run that it comes from.

    Args:
        found: By the loaded head.
        believed: Of the same tokens in that run.
        engine: Of the model beside it.

    Raises:
        EngineError: They differ by more than rounding.
    """
    here, there = np.array(found), np.array(believed)
    gaps = np.abs(np.subtract(here, there, out=np.zeros(len(here)), where=here != there))
    limits = MAX_HEAD_GAP, MEAN_HEAD_GAP
    if engine.details["head_dtype"] != "float32":
        limits = MAX_HEAD_GAP_16_BIT, MEAN_HEAD_GAP_16_BIT
    sharpness = max(1.0, 1 / engine.temperature)
    if len(gaps) and not (gaps.max() <= limits[0] * sharpness and gaps.mean() <= limits[1] * sharpness):
        raise EngineError(
            f"the head of the first model, loaded beside {engine.identity.name}, gives other logprobs than "
            f"that model did: they differ by up to {gaps.max():.3g} nats.\n"
            "Use `engine='transformers'`."
        )
