"""Two blocks of logits compared over the whole vocabulary, row by row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from tokscore.dataset.errors import EngineError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    FloatArray = NDArray[np.float64]

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

    def checked(self, key: int) -> ExactTokens:
        """The same.

        Args:
            key: Of the sequence, for messages.

        Raises:
            EngineError: One of the models gave NaN.
        """
        if not all(np.isfinite(column).all() for column in (self.entropy_teacher, self.entropy_student)):
            raise EngineError(
                f"sequence {key}: one of the models gave NaN. Look at the weights, or try another dtype."
            )
        return self

    def packed(self) -> FloatArray:
        """All of it as one array, float64 [rows, fields]."""
        return np.vstack([np.atleast_2d(column).astype(np.float64) for column in self]).T

    @classmethod
    def of_packed(cls, packed: FloatArray) -> ExactTokens:
        """What `packed` gave, of any number of alphas."""
        columns = packed.T
        n_single = len(cls._fields) - 2
        gjs, skew_kl = np.split(columns[n_single:], 2)
        same_top = columns[n_single - 1] > 0
        return cls._make([*columns[: n_single - 1], same_top, gjs, skew_kl])


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
