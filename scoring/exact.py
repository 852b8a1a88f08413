"""Two models beside each other over the whole vocabulary; logits are used and thrown away."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from tokscore.dataset.errors import EngineError, UsageError
from tokscore.scoring.engines.batching import Batching
from tokscore.scoring.engines.checkpoint.positions import UNLIMITED_LENGTH
from tokscore.scoring.engines.child import Child
from tokscore.scoring.engines.contract import TokenSequence
from tokscore.scoring.engines.loading import engine_errors
from tokscore.scoring.engines.transformers import TransformersEngine

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokscore.scoring.engines.spec import EngineSpec

    FloatArray = NDArray[np.float64]

# Tokens that are run together, by device: on the CPU few, since nobody hears of them before both are done.
BATCH_TOKENS = {"cpu": 512, "cuda": 16_384}
# A block of float64 probabilities stays below this, by device: on the CPU, several fit its cache.
BLOCK_BYTES = {"cpu": 2**20, "cuda": 512 * 2**20}
# No probability ratio is known better than this, and its logarithm stays finite.
_SMALLEST_RATIO = 2.0**-53


class ExactTokens(NamedTuple):
    """Two distributions per token compared over the whole vocabulary; all float64 of shape [rows], in nats.

    Attributes:
        teacher_logprob: Of the realised tokens.
        student_logprob: Likewise.
        kl_teacher_student: KL(teacher || student); inf where the student rules out what the teacher allows.
        kl_student_teacher: KL(student || teacher).
        total_variation: Sum of |p - q| / 2.
        entropy_teacher: Of the teacher's distribution.
        entropy_student: Of the student's.
        same_top: Whether both find the same id most likely, the first of equals; bool.
        gjs: One row for each alpha, shape [alphas, rows].
        skew_kl: KL(teacher || mixture), likewise.
    """

    teacher_logprob: FloatArray
    student_logprob: FloatArray
    kl_teacher_student: FloatArray
    kl_student_teacher: FloatArray
    total_variation: FloatArray
    entropy_teacher: FloatArray
    entropy_student: FloatArray
    same_top: NDArray[np.bool_]
    gjs: FloatArray
    skew_kl: FloatArray


Measure = Callable[[Iterable[TokenSequence]], Iterator[tuple[int, ExactTokens]]]


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
        temperatures = teacher.settings.temperature, student.settings.temperature
        if temperatures[0] != temperatures[1]:
            raise UsageError(
                f"the temperatures are {temperatures[0]:g} and {temperatures[1]:g}; expected one for both."
            )
        self.engines = [TransformersEngine(spec, spec.model.max_length) for spec in (teacher, student)]
        few = Batching(BATCH_TOKENS[str(self.engines[0].details["device"])], UNLIMITED_LENGTH)
        # A batch that one of them may not run would have it take other positions.
        mine, theirs = (engine.batching for engine in self.engines)
        self._batching = mine.within(theirs).within(few)
        self._temperature = temperatures[0]
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
                yield sequence.key, values

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
        values = ExactTokens(*(np.concatenate(column, axis=-1) for column in zip(*parts, strict=True)))
        if not all(np.isfinite(column).all() for column in (values.entropy_teacher, values.entropy_student)):
            raise EngineError(
                f"sequence {sequence.key}: one of the models gave NaN. "
                "Look at the weights, or try another dtype."
            )
        return values

    def close(self) -> None:
        """Free both models."""
        for engine in self.engines:
            engine.close()


def exact_divergences(
    teacher: torch.Tensor,
    student: torch.Tensor,
    token_ids: torch.Tensor,
    *,
    alphas: Sequence[float] = (0.5,),
    temperature: float = 1.0,
) -> ExactTokens:
    """Divergences of the softmaxes of two blocks of logits, in float64.

    Args:
        teacher: [rows, vocab], any float type; -inf rules an id out.
        student: Likewise; ids that only one block has are ruled out by the other.
        token_ids: The realised tokens, int64 [rows].
        alphas: Weights of the teacher in the GJS.
        temperature: Logits are divided by it.

    Returns:
        One row per row of logits; equal logits give exactly 0.

    Source:
        Kullback and Leibler (1951); Lin (1991), Divergence Measures Based on the Shannon Entropy.
    """
    width = max(teacher.shape[1], student.shape[1])
    rows = max(1, BLOCK_BYTES[teacher.device.type] // (8 * width))
    blocks = [
        _compare_block(
            _log_softmax(mine, width, temperature), _log_softmax(theirs, width, temperature), ids, alphas
        )
        for mine, theirs, ids in zip(
            *(torch.split(column, rows) for column in (teacher, student, token_ids)), strict=True
        )
    ]
    columns = [torch.cat(column, dim=-1).cpu().numpy() for column in zip(*blocks, strict=True)]
    return ExactTokens(*columns)


def _log_softmax(logits: torch.Tensor, width: int, temperature: float) -> torch.Tensor:
    padded = torch.nn.functional.pad(logits.double(), (0, width - logits.shape[1]), value=-math.inf)
    return torch.log_softmax(padded.div_(temperature), dim=1)


def _compare_block(
    log_p: torch.Tensor, log_q: torch.Tensor, token_ids: torch.Tensor, alphas: Sequence[float]
) -> tuple[torch.Tensor, ...]:
    """The fields of `ExactTokens` from float64 logprobs [rows, vocab]."""
    p, q = log_p.exp(), log_q.exp()
    gap = p - q
    realised = token_ids[:, None]
    columns = [
        log_p.gather(1, realised)[:, 0],
        log_q.gather(1, realised)[:, 0],
        _dot(p, log_p - log_q),
        _dot(q, log_q - log_p),
        gap.abs().sum(1) / 2,
        -_dot(p, log_p),
        -_dot(q, log_q),
        log_p.argmax(1) == log_q.argmax(1),
    ]
    mixed = p.new_empty((2, len(alphas), len(p)))
    for row, alpha in enumerate(alphas):
        mixed[:, row] = torch.stack(_mixed(p, q, gap, alpha))
    return (*columns, *mixed)


def _dot(p: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Sums of p * values per row, where an id without mass adds nothing."""
    # A product of matrices keeps no block of terms, as a sum over p * values does.
    total: torch.Tensor = torch.bmm(p[:, None], values[:, :, None])[:, 0, 0]
    if not torch.isfinite(total).all():
        terms = torch.where(p > 0, values, 0.0)
        total = torch.bmm(p[:, None], terms[:, :, None])[:, 0, 0]
    return total


def _mixed(
    p: torch.Tensor, q: torch.Tensor, gap: torch.Tensor, alpha: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Alpha KL(p || m) + (1 - alpha) KL(q || m), and KL(p || m); p / m is 1 + (1 - alpha) (p - q) / m."""
    m = torch.lerp(q, p, alpha).clamp_(min=torch.finfo(p.dtype).tiny)
    relative = gap / m
    least = _SMALLEST_RATIO - 1
    teacher = (relative * (1 - alpha)).clamp_(min=least).log1p_()
    student = relative.mul_(-alpha).clamp_(min=least).log1p_()
    skew_kl = _dot(p, teacher)
    return alpha * skew_kl + (1 - alpha) * _dot(q, student), skew_kl


@contextmanager
def measuring(
    teacher: EngineSpec, student: EngineSpec, *, alphas: Sequence[float] = (0.5,)
) -> Iterator[Measure]:
    """`ModelPair.measure`, in a process of its own where vLLM has changed transformers in this one.

    Raises:
        TokscoreError: As `ModelPair`.
    """
    pair: ModelPair | Child[ExactTokens]
    if "vllm" in sys.modules:
        pair = Child("tokscore.scoring.exact:ModelPair", "measure", teacher, student, alphas=alphas)
    else:
        pair = ModelPair(teacher, student, alphas=alphas)
    try:
        yield pair.call if isinstance(pair, Child) else pair.measure
    finally:
        pair.close()
