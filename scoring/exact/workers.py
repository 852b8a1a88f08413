"""Code that runs inside vLLM's workers: hidden states kept, and later compared with another model's logits.

Behind the mark of a request stands the place of its first row among the kept ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from tokscore.scoring.engines.vllm.worker.extension import ScoringExtension
from tokscore.scoring.engines.vllm.worker.heads import float32_heads, float32_logits
from tokscore.scoring.engines.vllm.worker.marks import Mark
from tokscore.scoring.engines.vllm.worker.prompt_rows import Rows
from tokscore.scoring.engines.vllm.worker.prompts import Pieces, PromptScorer, Step, WorkerSettings
from tokscore.scoring.engines.vllm.worker.runners import install
from tokscore.scoring.exact.divergences import ExactTokens, exact_divergences
from tokscore.scoring.exact.heads import load_head, save_head
from tokscore.scoring.exact.states import States

# Objects of vLLM, which has no types for us.
Vllm = Any
# So many of the first rows are run through the head at once, so that the next process can do the same.
PROBE_ROWS = 256


class ExactExtension(ScoringExtension):
    """Mixed into vLLM's worker class; its methods are called on every worker."""

    def tokscore_keep(self, settings: Sequence[Any], states: str, head: str) -> None:  # Any: WorkerSettings
        """Keep the hidden states of marked requests in a file, and the head in another, from now on."""
        self._take_over(StateKeeper(self.model_runner, WorkerSettings(*settings), states, head))

    def tokscore_compare(
        self,
        settings: Sequence[Any],  # Any: the fields of WorkerSettings
        states: str,
        head: str,
        alphas: Sequence[float],
    ) -> None:
        """Compare marked requests with hidden states that are kept there, from now on."""
        self._pair = PairScorer(self.model_runner, WorkerSettings(*settings), states, head, alphas)
        self._take_over(self._pair)

    def tokscore_probe(self, token_ids: Sequence[int]) -> list[float]:
        """Logprobs of tokens by the first kept rows and the head that came with them."""
        return self._pair.probe(token_ids)

    def _take_over(self, scorer: PromptScorer) -> None:
        self.tokscore_scorer = scorer
        install(self.model_runner, scorer)


class _PlacedScorer(PromptScorer):
    """Knows where the rows of each request belong."""

    def __init__(self, runner: Vllm, settings: WorkerSettings) -> None:
        super().__init__(runner, settings)
        self._temperature = settings.temperature
        self._firsts: dict[str, int] = {}

    def add(self, request_id: str, mark: Mark | None, given: tuple[int, bytes] | None) -> None:
        assert mark is not None
        *wanted, [first] = mark
        self._firsts[request_id] = first
        super().add(request_id, wanted, given)

    def remove(self, request_id: str) -> None:
        super().remove(request_id)
        self._firsts.pop(request_id, None)

    def _finish(self, request_id: str) -> Rows:
        del self._firsts[request_id]
        return super()._finish(request_id)

    def _rows(self, step: Step, values: torch.Tensor) -> Rows:
        """Numbers of each row, float64 [rows, numbers], as vLLM hands results on."""
        ids = torch.stack([step.targets, self.positions_of(step.pieces)], dim=1).int().cpu()
        return Rows(ids, values, torch.zeros(len(ids), dtype=torch.int32))

    def _places(self, pieces: Pieces) -> list[tuple[int, int]]:
        """First row and number of rows of each piece that has any."""
        found = []
        for span, positions in pieces:
            wanted = self._requests[span.request_id].wanted
            if len(positions) and wanted is not None:
                row = int(np.searchsorted(wanted, positions[0]))
                found.append((self._firsts[span.request_id] + row, len(positions)))
        return found


class StateKeeper(_PlacedScorer):
    """Writes hidden states, and returns the logprobs of the first rows, NaN for the others."""

    def __init__(self, runner: Vllm, settings: WorkerSettings, states: str, head: str) -> None:
        super().__init__(runner, settings)
        self._model, self._config = runner.model, runner.vllm_config
        self._paths = states, head
        self._states: States | None = None

    def _score(self, step: Step) -> Rows:
        wanted = step.hidden_states[step.rows]
        if self._states is None:
            with open(self._paths[1], "wb") as file:  # noqa: PTH123 (an open file of another process)
                save_head(self._model, self._config, wanted, file)
            self._states = States(self._paths[0], wanted.shape[1], wanted.dtype)
        logprobs = torch.full((len(step.rows), 1), torch.nan, dtype=torch.float64)
        done = 0
        for first, n in self._places(step.pieces):
            self._states.write(first, wanted[done : done + n])
            n_probe = min(max(PROBE_ROWS - first, 0), n)
            if n_probe:
                part = slice(done, done + n_probe)
                with float32_logits(self._heads):
                    logprobs[part, 0] = token_logprobs(
                        self._compute_logits, wanted[part], step.targets[part], self._temperature
                    )
            done += n
        return self._rows(step, logprobs)


class PairScorer(_PlacedScorer):
    """Compares the teacher's logits, from its kept hidden states, with those of the model that runs."""

    def __init__(
        self, runner: Vllm, settings: WorkerSettings, states: str, head: str, alphas: Sequence[float]
    ) -> None:
        super().__init__(runner, settings)
        teacher = load_head(head, self.device)
        self._teacher: Callable[[torch.Tensor], torch.Tensor | None] = teacher.model.compute_logits
        if settings.head_in_float32 and teacher.dtype != torch.float32:
            self._heads += float32_heads(teacher.model)
        self._states = States(states, teacher.width, teacher.dtype)
        self._alphas = tuple(alphas)

    @torch.inference_mode()
    def probe(self, token_ids: Sequence[int]) -> list[float]:
        """Logprobs of tokens by the first kept rows and the teacher's head."""
        targets = torch.tensor(token_ids, dtype=torch.int64, device=self.device)
        states = self._states.read([(0, len(targets))]).to(self.device)
        with float32_logits(self._heads):
            found: list[float] = token_logprobs(self._teacher, states, targets, self._temperature).tolist()
        return found

    def _score(self, step: Step) -> Rows:
        states = self._states.read(self._places(step.pieces)).to(self.device)
        found: list[ExactTokens] = []
        # The logits of both models share the memory that is set aside for one.
        n_rows = max(1, self._chunk_rows // 2)
        with float32_logits(self._heads):
            for first in range(0, len(step.rows), n_rows):
                part = slice(first, first + n_rows)
                teacher, student = (
                    self._teacher(states[part]),
                    self._compute_logits(step.hidden_states[step.rows[part]]),
                )
                assert teacher is not None
                assert student is not None
                found.append(
                    exact_divergences(
                        teacher,
                        student,
                        step.targets[part],
                        alphas=self._alphas,
                        temperature=self._temperature,
                    )
                )
        values = np.concatenate([each.packed() for each in found])
        return self._rows(step, torch.from_numpy(values))


def token_logprobs(
    compute_logits: Callable[[torch.Tensor], torch.Tensor | None],
    states: torch.Tensor,
    token_ids: torch.Tensor,
    temperature: float,
) -> torch.Tensor:
    """Logprobs of tokens, float64 [rows], on the CPU."""
    found = [
        torch.log_softmax(logits.double().div_(temperature), 1).gather(1, ids[:, None])[:, 0]
        for rows, ids in zip(torch.split(states, 16), torch.split(token_ids, 16), strict=True)
        if (logits := compute_logits(rows)) is not None
    ]
    return torch.cat(found).cpu()
