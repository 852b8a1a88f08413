"""Two models of vLLM: one leaves its hidden states, and the other runs beside the head of the first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from tokscore.dataset.errors import EngineError, UsageError
from tokscore.scoring.engines.child import Child
from tokscore.scoring.engines.contract import TokenSequence
from tokscore.scoring.engines.settings import EnginePath
from tokscore.scoring.engines.vllm.surroundings import ENVIRONMENT
from tokscore.scoring.exact.divergences import ExactTokens, exact_divergences
from tokscore.scoring.exact.pair import common_temperature
from tokscore.scoring.exact.rounds import MAX_BYTES, Rounds, StateSizes
from tokscore.scoring.exact.states import NamelessFile
from tokscore.scoring.exact.vllm_engines import Probe

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokscore.scoring.engines.spec import EngineSpec

# Called with (tokens done, tokens in all) while the first model runs.
Keeping = Callable[[int, int], None]
_ENGINES = "tokscore.scoring.exact.vllm_engines"


class OneAfterOther:
    """Teacher and student, each in a process of its own that ends before the other starts.

    Memory holds one model, and the head of the first beside the second.
    """

    def __init__(
        self,
        teacher: EngineSpec,
        student: EngineSpec,
        ahead: Iterable[TokenSequence],
        folder: Path,
        *,
        alphas: Sequence[float] = (0.5,),
        keeping: Keeping = lambda _done, _total: None,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        """Check that both can run so; nothing is started.

        Args:
            teacher: A plan for vLLM.
            student: Likewise.
            ahead: All sequences that will be compared, in that order; drawn as the disk has room.
            folder: On the disk that has room for hidden states.
            alphas: Weights of the teacher in the mixtures.
            keeping: Called as the first model runs.
            max_bytes: Of hidden states at a time.

        Raises:
            UsageError: The temperatures differ, or several devices are asked for.
        """
        for spec in (teacher, student):
            for name in ("tensor_parallel_size", "pipeline_parallel_size"):
                if getattr(spec.settings, name) > 1:
                    raise UsageError(
                        f"`{name}` is {getattr(spec.settings, name)}; values over the whole vocabulary are "
                        "taken on one device of vLLM. Leave it out, or use `engine='transformers'`."
                    )
        common_temperature(teacher, student)
        self._teacher, self._student = (
            replace(
                spec, shares=False, settings=replace(spec.settings, engine_path=EnginePath.FUSED, top_k=0)
            )
            for spec in (teacher, student)
        )
        self._folder, self._alphas, self._keeping = folder, tuple(alphas), keeping
        self._rounds = Rounds(ahead, folder, StateSizes.of(teacher), max_bytes)
        self._firsts: dict[int, tuple[int, int]] = {}
        self._running = ExitStack()
        self._compare: Child[ExactTokens] | None = None

    def measure(self, sequences: Iterable[TokenSequence]) -> Iterator[tuple[int, ExactTokens]]:
        """Key and values of every sequence, a row for each wanted token.

        Raises:
            EngineError: A model failed, gave NaN, or its head cannot be run beside the other.
            TokscoreError: The disk has no room for the hidden states of a sequence.
        """
        left = []
        for sequence in sequences:
            if sequence.n_rows:
                left.append(sequence)
            else:
                yield sequence.key, self._nothing()
        while left:
            if left[0].key not in self._firsts:
                self._next_round()
            ready = list(takewhile(lambda each: each.key in self._firsts, left))
            left = left[len(ready) :]
            if not ready or self._compare is None:
                raise EngineError(f"sequence {left[0].key}: the first model has not run it.")
            placed = {}
            for sequence in ready:
                first, n_rows = self._firsts.pop(sequence.key)
                if n_rows != sequence.n_rows:
                    raise EngineError(f"sequence {sequence.key} changed while the models ran.")
                placed[first] = sequence
            for first, values in self._compare.call(
                each._replace(key=first) for first, each in placed.items()
            ):
                key = placed[first].key
                yield key, values.checked(key)

    def _nothing(self) -> ExactTokens:
        """Of a sequence without wanted tokens."""
        logits = torch.empty((0, 1))
        return exact_divergences(logits, logits, torch.empty(0, dtype=torch.int64), alphas=self._alphas)

    def _next_round(self) -> None:
        """Run the first model over as much as there is room for, then start the second."""
        self.close()
        self._firsts.clear()
        states, head = (self._running.enter_context(NamelessFile(self._folder)) for _ in range(2))
        placed = self._rounds.take()
        if not placed:
            return
        self._firsts = {each.key: (first, each.n_rows) for first, each in placed.items()}
        longest = max(len(each.token_ids) for each in placed.values())
        probe = self._keep(placed, longest, states.path, head.path)
        self._compare = Child(
            f"{_ENGINES}:ComparingEngine",
            "compare",
            *(self._student, longest, states.path, head.path, probe, self._alphas),
            environment=ENVIRONMENT,
        )
        self._running.callback(self._compare.close)

    def _keep(self, placed: Mapping[int, TokenSequence], longest: int, states: str, head: str) -> Probe:
        """Have the first model leave its hidden states; what it says of the first rows."""
        total = sum(len(each.token_ids) for each in placed.values())
        n_done = 0
        self._keeping(0, total)
        said: dict[int, NDArray[np.float64]] = {}
        child: Child[NDArray[np.float64]] = Child(
            f"{_ENGINES}:KeepingEngine", "keep", self._teacher, longest, states, head, environment=ENVIRONMENT
        )
        try:
            for first, logprobs in child.call(each._replace(key=first) for first, each in placed.items()):
                if first == 0 or not np.isnan(logprobs).all():
                    said[first] = logprobs
                n_done += len(placed[first].token_ids)
                self._keeping(n_done, total)
        finally:
            child.close()
        first_rows = [
            (int(token_id), float(logprob))
            for first in sorted(said)
            for token_id, logprob in zip(placed[first].targets(), said[first], strict=True)
        ]
        return Probe(*map(list, zip(*takewhile(lambda row: not np.isnan(row[1]), first_rows), strict=True)))

    def close(self) -> None:
        """End what runs, and give the disk back."""
        self._compare = None
        with suppress(BrokenPipeError):
            self._running.close()
