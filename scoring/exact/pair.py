"""Two models of transformers side by side, both in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from tokscore.dataset.errors import UsageError
from tokscore.scoring.engines.batching import Batching
from tokscore.scoring.engines.checkpoint.positions import UNLIMITED_LENGTH
from tokscore.scoring.engines.contract import TokenSequence
from tokscore.scoring.engines.loading import engine_errors
from tokscore.scoring.engines.transformers import TransformersEngine
from tokscore.scoring.exact.divergences import ExactTokens, exact_divergences

if TYPE_CHECKING:
    from tokscore.scoring.engines.spec import EngineSpec

# Tokens that are run together, by device: on the CPU few, since nobody hears of them before both are done.
BATCH_TOKENS = {"cpu": 512, "cuda": 16_384}


def common_temperature(teacher: EngineSpec, student: EngineSpec) -> float:
    """The temperature of both.

    Raises:
        UsageError: They differ.
    """
    temperatures = teacher.settings.temperature, student.settings.temperature
    if temperatures[0] != temperatures[1]:
        raise UsageError(
            f"the temperatures are {temperatures[0]:g} and {temperatures[1]:g}; expected one for both."
        )
    return temperatures[0]


class ModelPair:
    """Teacher and student, both loaded with transformers.

    Where one has more ids than the other, these have probability 0 in the other.

    Attributes:
        engines: Teacher and student.
    """

    def __init__(self, teacher: EngineSpec, student: EngineSpec, *, alphas: Sequence[float] = (0.5,)) -> None:
        """Load both models.

        Args:
            teacher: A plan for the transformers engine.
            student: Likewise.
            alphas: Weights of the teacher in the GJS, each between 0 and 1.

        Raises:
            EngineError: A model cannot be loaded.
            InputError: Weights do not fit their configuration.
            UsageError: The temperatures differ.
        """
        self._temperature = common_temperature(teacher, student)
        self.engines = [TransformersEngine(spec, spec.model.max_length) for spec in (teacher, student)]
        few = Batching(BATCH_TOKENS[str(self.engines[0].details["device"])], UNLIMITED_LENGTH)
        # A batch that one of them may not run would have it take other positions.
        mine, theirs = (engine.batching for engine in self.engines)
        self._batching = mine.within(theirs).within(few)
        self._alphas = tuple(alphas)

    def measure(self, sequences: Iterable[TokenSequence]) -> Iterator[tuple[int, ExactTokens]]:
        """Key and values of every sequence, a row for each wanted token; the longest of each window first.

        Raises:
            EngineError: Out of memory, or a model failed or gave NaN.
        """
        teacher, student = self.engines
        chunk_rows = min(teacher.chunk_rows, student.chunk_rows)
        for batch in self._batching.batches(sequences):
            with engine_errors(), torch.inference_mode():
                mine, theirs = (engine.logits(batch, chunk_rows) for engine in self.engines)
                found = [
                    self._compare(sequence, zip(*chunks, strict=True), chunk_rows)
                    for sequence, *chunks in zip(batch, mine, theirs, strict=True)
                ]
            for sequence, values in zip(batch, found, strict=True):
                yield sequence.key, values.checked(sequence.key)

    def _compare(
        self,
        sequence: TokenSequence,
        chunks: Iterator[tuple[torch.Tensor, torch.Tensor]],
        chunk_rows: int,
    ) -> ExactTokens:
        targets = torch.split(torch.from_numpy(sequence.targets().astype(np.int64)), chunk_rows)
        parts = [
            exact_divergences(
                teacher, student, ids.to(teacher.device), alphas=self._alphas, temperature=self._temperature
            )
            for (teacher, student), ids in zip(chunks, targets, strict=True)
        ]
        return ExactTokens(*(np.concatenate(column, axis=-1) for column in zip(*parts, strict=True)))

    def close(self) -> None:
        """Free both models."""
        for engine in self.engines:
            engine.close()
