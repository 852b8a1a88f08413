"""Code that runs inside vLLM's workers: prompt rows scored in one pass, a bounded number at a time.

vLLM's own step makes log-probabilities of whole prompts, sorts the vocabulary and counts ranks in separate
passes, and on one of its two model runners holds the logits of a whole batch. Requests that carry `MARK` are
scored here instead; all others go vLLM's way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MethodType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from tokscore.scoring.engines.vllm.attention_heads import check_heads
from tokscore.scoring.engines.vllm.fused import score_rows
from tokscore.scoring.engines.vllm.fused_check import check_fused_pass

# Key of a request's `SamplingParams.extra_args`; its value is None where all rows are wanted, otherwise the
# wanted rows as half-open runs [start, stop, start, stop, ...].
MARK = "tokscore"

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


class ScoringExtension:
    """Mixed into vLLM's worker class; its methods are called on every worker."""

    model_runner: Vllm

    def tokscore_check_heads(self) -> None:
        """Refuse layers that vLLM's Transformers backend would misread."""
        check_heads()

    def tokscore_install(
        self, settings: Sequence[Any]
    ) -> dict[str, str]:  # Any: the fields of WorkerSettings
        """Take over the prompt rows of marked requests.

        Args:
            settings: The fields of `WorkerSettings`.

        Returns:
            What is in use: `runner` (V1 or V2) and `head_dtype`.

        Raises:
            RuntimeError: This vLLM has neither of the two runners this was written for, or the fused pass
                makes other numbers here than it should.
            ValueError: The head cannot be run in float32.
        """
        runner = self.model_runner
        given = WorkerSettings(*settings)
        scorer = PromptScorer(runner, given)
        check_fused_pass(
            scorer.device,
            getattr(torch, scorer.head_dtype),
            runner.model_config.get_vocab_size(),
            given.top_k,
            given.temperature,
        )
        if hasattr(runner, "prompt_logprobs_worker"):
            # Only the last stage of a pipeline has one.
            if runner.prompt_logprobs_worker is not None:
                runner.prompt_logprobs_worker = _RunnerV2(runner.prompt_logprobs_worker, scorer)
            name = "V2"
        elif hasattr(runner, "_get_prompt_logprobs_dict"):
            _RunnerV1(runner, scorer).install()
            name = "V1"
        else:
            raise RuntimeError("this vLLM has no prompt log-probabilities where they are looked for")
        return {"runner": name, "head_dtype": scorer.head_dtype}


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


class _Block(NamedTuple):
    """Rows of one request, on the model's device: ids and logprobs of the token and the top k, entropy."""

    ids: torch.Tensor
    logprobs: torch.Tensor
    ranks: torch.Tensor


@dataclass(slots=True)
class _Request:
    wanted: NDArray[np.int64] | None
    n_done: int = 0
    blocks: list[_Block] = field(default_factory=list)

    def positions(self, start: int, stop: int) -> NDArray[np.int64]:
        """The wanted positions in [start, stop)."""
        if self.wanted is None:
            return np.arange(start, stop)
        first, last = np.searchsorted(self.wanted, (start, stop))
        return self.wanted[first:last]


class PromptScorer:
    """Scores the prompt rows of marked requests, whatever the runner.

    Attributes:
        device: Of the model.
        head_dtype: Type of the logits, for the user.
    """

    def __init__(self, runner: Vllm, settings: WorkerSettings) -> None:
        self._compute_logits: Callable[[torch.Tensor], torch.Tensor | None] = runner.model.compute_logits
        self._settings = settings
        self.device: torch.device = runner.device
        self._requests: dict[str, _Request] = {}
        vocab_size = runner.model_config.get_vocab_size()
        self._chunk_rows = max(1, settings.logits_bytes // (4 * vocab_size))
        dtype = runner.model_config.dtype
        in_float32 = settings.head_in_float32 and dtype != torch.float32
        self._heads = _float32_heads(runner.model) if in_float32 else []
        self.head_dtype = "float32" if in_float32 else str(dtype).removeprefix("torch.")

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._requests

    def add(self, request_id: str, mark: Sequence[int] | None) -> None:
        """A new marked request, or one that starts over."""
        wanted = None if mark is None else _positions_of_runs(mark)
        self._requests[request_id] = _Request(wanted)

    def remove(self, request_id: str) -> None:
        """Forget a request, if it is known."""
        self._requests.pop(request_id, None)

    def step(
        self,
        spans: Sequence[Span],
        hidden_states: torch.Tensor,
        targets_of: Callable[[Sequence[tuple[Span, NDArray[np.int64]]]], torch.Tensor],
    ) -> dict[str, tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Score the wanted rows of one step of the model.

        Args:
            spans: Of marked requests.
            hidden_states: [rows, width], the step's output.
            targets_of: Gives the ids that follow the wanted positions of each span, int64 [rows], on the
                device of the model.

        Returns:
            For each request whose prompt ended: ids [rows, 1 + k], logprobs [rows, 1 + k + 1] and ranks
            [rows], with the realised token first and the entropy last.

        Raises:
            RuntimeError: A step left out rows, as a cached prefix does.
        """
        pieces: list[tuple[Span, NDArray[np.int64]]] = []
        for span in spans:
            request = self._requests[span.request_id]
            if span.start == 0 and request.n_done:
                # Preempted: the prompt is computed anew.
                request.blocks.clear()
            elif span.start != request.n_done:
                raise RuntimeError(
                    f"the prompt of request {span.request_id} goes on at position {span.start} "
                    f"after {request.n_done}"
                )
            request.n_done = max(span.stop, span.start)
            pieces.append((span, request.positions(span.start, span.stop)))
        rows = np.concatenate([positions - span.start + span.row for span, positions in pieces])
        if len(rows):
            block = self._score(hidden_states, self.on_device(rows), targets_of(pieces))
            first = 0
            for span, positions in pieces if block is not None else ():
                if len(positions):
                    part = slice(first, first + len(positions))
                    self._requests[span.request_id].blocks.append(
                        _Block(*(column[part] for column in block))  # type: ignore[union-attr]
                    )
                    first += len(positions)
        return {span.request_id: self._finish(span.request_id) for span in spans if span.is_last}

    def on_device(self, values: NDArray[np.int64]) -> torch.Tensor:
        """The values as a tensor beside the model."""
        return torch.from_numpy(values).to(self.device, non_blocking=True)

    def _finish(self, request_id: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        blocks = self._requests.pop(request_id).blocks
        if not blocks:
            top_k = self._settings.top_k
            blocks = [
                _Block(
                    torch.empty((0, top_k + 1), dtype=torch.int32),
                    torch.empty((0, top_k + 2)),
                    torch.empty(0, dtype=torch.int32),
                )
            ]
        ids, logprobs, ranks = (
            column[0] if len(column) == 1 else torch.cat(column) for column in zip(*blocks, strict=True)
        )
        return ids, logprobs, ranks

    def _score(self, hidden_states: torch.Tensor, rows: torch.Tensor, targets: torch.Tensor) -> _Block | None:
        """Scores of rows of the hidden states; None on workers that get no logits."""
        n, top_k = len(rows), self._settings.top_k
        made = _Block(
            torch.empty((n, top_k + 1), dtype=torch.int32, device=self.device),
            torch.empty((n, top_k + 2), dtype=torch.float32, device=self.device),
            torch.empty(n, dtype=torch.int32, device=self.device),
        )
        with self._float32_logits():
            for first in range(0, n, self._chunk_rows):
                part = slice(first, first + self._chunk_rows)
                logits = self._compute_logits(hidden_states[rows[part]])
                if logits is None:
                    return None
                scores = score_rows(logits, targets[part], top_k, self._settings.temperature)
                made.ids[part, 0], made.ids[part, 1:] = targets[part], scores.top_ids
                made.logprobs[part, 0] = scores.logprobs
                made.logprobs[part, 1:-1] = scores.top_logprobs
                made.logprobs[part, -1] = scores.entropy
                made.ranks[part] = scores.ranks
        return made

    @contextmanager
    def _float32_logits(self) -> Iterator[None]:
        """Only while prompts are scored: what vLLM samples stays as it was."""
        for processor in self._heads:
            processor._get_logits = MethodType(_logits_in_float32, processor)
        try:
            yield
        finally:
            for processor in self._heads:
                del processor._get_logits


def _positions_of_runs(runs: Sequence[int]) -> NDArray[np.int64]:
    pairs = np.asarray(runs, np.int64).reshape(-1, 2)
    return np.concatenate([np.arange(start, stop) for start, stop in pairs])


def runs_of(wanted: NDArray[np.bool_]) -> list[int]:
    """The true positions as half-open runs [start, stop, start, stop, ...]."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], wanted, [False]]).astype(np.int8)))
    return [int(edge) for edge in edges]


def _float32_heads(model: Vllm) -> list[Vllm]:
    """The modules that turn hidden states into logits."""
    from vllm.model_executor.layers.logits_processor import LogitsProcessor

    heads = [module for module in model.modules() if isinstance(module, LogitsProcessor)]
    if not heads or any(head.logits_as_input for head in heads):
        raise ValueError("this model makes its logits in a way that cannot be run in float32")
    return heads


def _logits_in_float32(
    self: Vllm,
    hidden_states: torch.Tensor,
    lm_head: Vllm,
    embedding_bias: torch.Tensor | None,
    skip_gather: bool = False,
) -> torch.Tensor | None:
    """`LogitsProcessor._get_logits` with float32 sums and results."""
    weight = lm_head.weight
    if weight.dtype not in (torch.bfloat16, torch.float16):
        raise ValueError(f"a head of {weight.dtype} cannot be run in float32")
    logits: torch.Tensor | None
    if weight.is_cuda:
        logits = torch.mm(hidden_states.to(weight.dtype), weight.t(), out_dtype=torch.float32)
    else:
        logits = torch.nn.functional.linear(hidden_states.float(), weight.float())
    if embedding_bias is not None:
        logits += embedding_bias
    if skip_gather:
        return logits
    if lm_head.tp_size > 1:
        logits = self._gather_logits(logits)
    return None if logits is None else logits[..., : self.org_vocab_size]


class _RunnerV1:
    """The seam of vLLM's first model runner: one method makes all prompt rows of a step."""

    def __init__(self, runner: Vllm, scorer: PromptScorer) -> None:
        self._runner = runner
        self._scorer = scorer
        self._stock = runner._get_prompt_logprobs_dict
        self._prompts: dict[str, NDArray[np.int64]] = {}

    def install(self) -> None:
        self._runner._get_prompt_logprobs_dict = self.step

    def step(self, hidden_states: torch.Tensor, num_scheduled_tokens: Mapping[str, int]) -> dict[str, Vllm]:
        """Marked requests here, the others by vLLM."""
        runner = self._runner
        asked: dict[str, int] = runner.num_prompt_logprobs
        marks = {name: _mark_of(runner.requests[name].sampling_params) for name in asked}
        results: dict[str, Vllm] = {}
        plain = {name: k for name, k in asked.items() if marks[name] is _NO_MARK}
        if plain:
            runner.num_prompt_logprobs = plain
            try:
                results |= self._stock(hidden_states, num_scheduled_tokens)
            finally:
                left = runner.num_prompt_logprobs
                runner.num_prompt_logprobs = {
                    name: k for name, k in asked.items() if name not in plain or name in left
                }
                asked = runner.num_prompt_logprobs
        spans = []
        for name in [name for name in asked if marks[name] is not _NO_MARK]:
            n_scheduled = num_scheduled_tokens.get(name)
            if n_scheduled is None:
                continue
            if name not in self._scorer:
                self._scorer.add(name, marks[name])
                self._prompts[name] = np.asarray(runner.requests[name].prompt_token_ids, np.int64)
            start, n_prompt = int(runner.requests[name].num_computed_tokens), len(self._prompts[name])
            row = int(runner.query_start_loc.np[runner.input_batch.req_id_to_index[name]])
            stop, is_last = min(start + n_scheduled, n_prompt - 1), start + n_scheduled >= n_prompt
            spans.append(Span(name, 0, row, start, stop, is_last))
        if spans:
            made = self._scorer.step(spans, hidden_states, self._targets)
            results |= {name: _tensors(*(column.cpu() for column in made[name])) for name in made}
            for name in made:
                del asked[name], self._prompts[name]
        self._forget_aborted()
        return results

    def _targets(self, pieces: Sequence[tuple[Span, NDArray[np.int64]]]) -> torch.Tensor:
        ids = [self._prompts[span.request_id][positions + 1] for span, positions in pieces]
        return self._scorer.on_device(np.concatenate(ids))

    def _forget_aborted(self) -> None:
        for name in [name for name in self._prompts if name not in self._runner.requests]:
            del self._prompts[name]
            self._scorer.remove(name)


class _RunnerV2:
    """Stands for the object of vLLM's second model runner that makes prompt rows."""

    def __init__(self, stock: Vllm, scorer: PromptScorer) -> None:
        self._stock = stock
        self._scorer = scorer

    def __getattr__(self, name: str) -> Vllm:
        return getattr(self._stock, name)

    def add_request(self, req_id: str, req_idx: int, sampling_params: Vllm) -> None:
        self._stock.add_request(req_id, req_idx, sampling_params)
        mark = _mark_of(sampling_params)
        if mark is not _NO_MARK:
            self._stock.uses_prompt_logprobs[req_idx] = False
            self._scorer.add(req_id, mark)

    def remove_request(self, req_id: str) -> None:
        self._stock.remove_request(req_id)
        self._scorer.remove(req_id)

    def compute_prompt_logprobs(
        self,
        logits_fn: Callable[[torch.Tensor], torch.Tensor],
        hidden_states: torch.Tensor,
        input_batch: Vllm,
        all_token_ids: torch.Tensor,
        num_computed_tokens: torch.Tensor,
        prompt_lens: NDArray[np.int32],
    ) -> dict[str, Vllm]:
        """Marked requests here, the others by vLLM."""
        results: dict[str, Vllm] = self._stock.compute_prompt_logprobs(
            logits_fn, hidden_states, input_batch, all_token_ids, num_computed_tokens, prompt_lens
        )
        spans = []
        for index, name in enumerate(input_batch.req_ids):
            slot = int(input_batch.idx_mapping_np[index])
            start, n_prompt = int(input_batch.num_computed_prefill_tokens_np[index]), int(prompt_lens[slot])
            if name not in self._scorer or start >= n_prompt:
                continue
            n_scheduled = int(input_batch.num_scheduled_tokens[index])
            stop, is_last = min(start + n_scheduled, n_prompt - 1), start + n_scheduled >= n_prompt
            row = int(input_batch.query_start_loc_np[index])
            spans.append(Span(name, slot, row, start, stop, is_last))
        if spans:

            def targets(pieces: Sequence[tuple[Span, NDArray[np.int64]]]) -> torch.Tensor:
                slots = np.repeat([span.slot for span, _ in pieces], [len(at) for _, at in pieces])
                following = np.concatenate([at for _, at in pieces]) + 1
                rows = all_token_ids[self._scorer.on_device(slots), self._scorer.on_device(following)]
                return rows.to(torch.int64)

            made = self._scorer.step(spans, hidden_states, targets)
            results |= {name: _tensors(*columns) for name, columns in made.items()}
        return results


_NO_MARK: Any = object()  # Any: stands for a missing mark, which may be None


def _mark_of(sampling_params: Vllm) -> Sequence[int] | None:
    extra = getattr(sampling_params, "extra_args", None) or {}
    mark: Sequence[int] | None = extra.get(MARK, _NO_MARK)
    return mark


def _tensors(ids: torch.Tensor, logprobs: torch.Tensor, ranks: torch.Tensor) -> Vllm:
    from vllm.v1.outputs import LogprobsTensors

    return LogprobsTensors(ids, logprobs, ranks)
