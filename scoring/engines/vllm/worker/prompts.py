"""Prompt rows scored in one pass, a bounded number at a time.

vLLM's own step makes log-probabilities of whole prompts, sorts the vocabulary and counts ranks in separate
passes, and on one of its two model runners holds the logits of a whole batch. Requests that carry `MARK` are
scored here instead; all others go vLLM's way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from tokscore.scoring.engines.vllm.worker.fused import score_rows
from tokscore.scoring.engines.vllm.worker.heads import float32_heads, float32_logits
from tokscore.scoring.engines.vllm.worker.marks import OWN, Mark, unpacked, wanted_of
from tokscore.scoring.engines.vllm.worker.prompt_rows import PromptRows, Rows
from tokscore.scoring.given.ids import stacked

# Objects of vLLM, which has no types for us.
Vllm = Any


class WorkerSettings(NamedTuple):
    """How workers score.

    Attributes:
        top_k: Alternatives to return at every position.
        temperature: Logits are divided by it before the softmax.
        head_in_float32: Whether the logits are made and kept in float32 where the model computes in less.
        logits_bytes: The logits of one block of rows stay below this.
    """

    top_k: int
    temperature: float
    head_in_float32: bool
    logits_bytes: int


class Span(NamedTuple):
    """The part of one prompt that a step of the model computed.

    Attributes:
        request_id: Whose prompt.
        slot: Where the runner keeps the request.
        row: Row of the hidden states that holds position `start`.
        start: First position.
        stop: End, half-open; the last position of a prompt, which predicts no prompt token, is left out.
        is_last: Whether the prompt ends in this step.
    """

    request_id: str
    slot: int
    row: int
    start: int
    stop: int
    is_last: bool


# Parts of prompts, with the wanted positions in each, in ascending order.
Pieces = Sequence[tuple[Span, NDArray[np.int64]]]


class Step(NamedTuple):
    """What is to be scored of one step of the model.

    Attributes:
        hidden_states: [tokens, width], the step's output.
        rows: Wanted rows of it, int64 [rows], in the order of `pieces`.
        targets: The id to be scored in each, int64 [rows].
        pieces: Whose rows they are.
        at_ids: Further ids to be scored, int64 [rows, given], -1 to pad; None where there are none.
    """

    hidden_states: torch.Tensor
    rows: torch.Tensor
    targets: torch.Tensor
    pieces: Pieces
    at_ids: torch.Tensor | None


class PromptScorer:
    """Scores the prompt rows of marked requests, whatever the runner.

    Attributes:
        device: Of the model.
        head_dtype: Type of the logits, for the user.
        n_computed: Prompt tokens that the model has computed.
    """

    def __init__(self, runner: Vllm, settings: WorkerSettings) -> None:
        self._compute_logits: Callable[[torch.Tensor], torch.Tensor | None] = runner.model.compute_logits
        self._settings = settings
        self.device: torch.device = runner.device
        self._requests: dict[str, PromptRows] = {}
        self.n_computed = 0
        vocab_size = runner.model_config.get_vocab_size()
        self._chunk_rows = max(1, settings.logits_bytes // (4 * vocab_size))
        dtype = runner.model_config.dtype
        in_float32 = settings.head_in_float32 and dtype != torch.float32
        self._heads = float32_heads(runner.model) if in_float32 else []
        self.head_dtype = "float32" if in_float32 else str(dtype).removeprefix("torch.")

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._requests

    def add(self, request_id: str, mark: Mark | None, given: tuple[int, bytes] | None) -> None:
        """A new marked request, or one that starts over."""
        wanted, others = (None, None) if mark is None else wanted_of(mark)
        at_ids = None if given is None else unpacked(given)
        self._requests[request_id] = PromptRows(wanted, others, at_ids)

    def remove(self, request_id: str) -> None:
        """Forget a request, if it is known."""
        self._requests.pop(request_id, None)

    def step(
        self,
        spans: Sequence[Span],
        hidden_states: torch.Tensor,
        targets_of: Callable[[Pieces], torch.Tensor],
    ) -> dict[str, Rows]:
        """Score the wanted rows of one step of the model.

        Args:
            spans: Of marked requests.
            hidden_states: [rows, width], the step's output.
            targets_of: Gives the ids that follow the wanted positions of each span, int64 [rows], on the
                device of the model.

        Returns:
            The rows of each request whose prompt ended. Rows that no step computed, since they were found in
            the cache, are left out; their positions tell.
        """
        pieces: list[tuple[Span, NDArray[np.int64]]] = []
        for span in spans:
            request = self._requests[span.request_id]
            if span.start < request.n_done:
                # Preempted: the prompt is computed anew, from what is still in the cache on.
                request.go_back_to(span.start)
            request.n_done = max(span.stop, span.start)
            self.n_computed += span.stop - span.start + span.is_last
            pieces.append((span, request.positions(span.start, span.stop)))
        rows = np.concatenate([positions - span.start + span.row for span, positions in pieces])
        if len(rows):
            targets = targets_of(pieces)
            others = [self._requests[span.request_id].others_at(span.start, span.stop) for span, _ in pieces]
            if any((ids != OWN).any() for ids in others):
                ids = self.on_device(np.concatenate(others))
                targets = torch.where(ids == OWN, targets, ids)
            given = stacked(
                [self._requests[span.request_id].given_at(span.start, span.stop) for span, _ in pieces],
                [len(positions) for _, positions in pieces],
            )
            at_ids = None if given is None else self.on_device(given.astype(np.int64))
            block = self._score(Step(hidden_states, self.on_device(rows), targets, pieces, at_ids))
            first = 0
            for span, positions in pieces if block is not None else ():
                if len(positions):
                    part = slice(first, first + len(positions))
                    request = self._requests[span.request_id]
                    made = Rows(*(column[part] for column in block))  # type: ignore[union-attr]
                    if at_ids is not None:
                        # Other requests of the step may have more given ids.
                        width = self._settings.top_k + 2 + request.n_given
                        made = made._replace(logprobs=made.logprobs[:, :width])
                    request.blocks.append((positions, made))
                    first += len(positions)
        return {span.request_id: self._finish(span.request_id) for span in spans if span.is_last}

    def positions_of(self, pieces: Pieces) -> torch.Tensor:
        """The wanted positions of all pieces, int64 [rows], beside the model."""
        return self.on_device(np.concatenate([positions for _, positions in pieces]))

    def on_device(self, values: NDArray[np.int64]) -> torch.Tensor:
        """The values as a tensor beside the model."""
        return torch.from_numpy(values).to(self.device, non_blocking=True)

    def _finish(self, request_id: str) -> Rows:
        return self._requests.pop(request_id).joined(self._settings.top_k)

    def _score(self, step: Step) -> Rows | None:
        """Scores of rows of the hidden states; None on workers that get no logits."""
        hidden_states, rows, targets, pieces, at_ids = step
        n, top_k = len(rows), self._settings.top_k
        n_given = 0 if at_ids is None else at_ids.shape[1]
        made = Rows(
            torch.empty((n, top_k + 2), dtype=torch.int32, device=self.device),
            torch.empty((n, top_k + 2 + n_given), dtype=torch.float32, device=self.device),
            torch.empty(n, dtype=torch.int32, device=self.device),
        )
        positions = self.positions_of(pieces)
        with float32_logits(self._heads):
            for first in range(0, n, self._chunk_rows):
                part = slice(first, first + self._chunk_rows)
                logits = self._compute_logits(hidden_states[rows[part]])
                if logits is None:
                    return None
                scores = score_rows(
                    logits,
                    targets[part],
                    top_k,
                    self._settings.temperature,
                    None if at_ids is None else at_ids[part],
                )
                made.ids[part, 0], made.ids[part, 1:-1] = targets[part], scores.top_ids
                made.ids[part, -1] = positions[part]
                made.logprobs[part, 0] = scores.logprobs
                made.logprobs[part, 1 : top_k + 1] = scores.top_logprobs
                made.logprobs[part, top_k + 1] = scores.entropy
                if scores.at_logprobs is not None:
                    made.logprobs[part, top_k + 2 :] = scores.at_logprobs
                made.ranks[part] = scores.ranks
        return made
