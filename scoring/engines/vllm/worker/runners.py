"""The seams of vLLM's two model runners, where marked requests are taken over."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tokscore.scoring.engines.vllm.worker.marks import GIVEN, MARK, Mark
from tokscore.scoring.engines.vllm.worker.prompts import Pieces, PromptScorer, Span

# Objects of vLLM, which has no types for us.
Vllm = Any


def install(runner: Vllm, scorer: PromptScorer) -> str:
    """Have a scorer take the marked requests of a runner, instead of one that did; V1 or V2, the runner.

    Raises:
        RuntimeError: This vLLM has neither of the two runners this was written for.
    """
    if hasattr(runner, "prompt_logprobs_worker"):
        stock = runner.prompt_logprobs_worker
        # Only the last stage of a pipeline has one.
        if stock is not None:
            stock = stock.stock if isinstance(stock, RunnerV2) else stock
            runner.prompt_logprobs_worker = RunnerV2(stock, scorer)
        return "V2"
    if hasattr(runner, "_get_prompt_logprobs_dict"):
        RunnerV1(runner, scorer).install()
        return "V1"
    raise RuntimeError("this vLLM has no prompt log-probabilities where they are looked for")


class RunnerV1:
    """The seam of vLLM's first model runner: one method makes all prompt rows of a step."""

    def __init__(self, runner: Vllm, scorer: PromptScorer) -> None:
        self._runner = runner
        self._scorer = scorer
        stock = runner._get_prompt_logprobs_dict
        earlier = getattr(stock, "__self__", None)
        self._stock: Callable[..., dict[str, Vllm]] = (
            earlier._stock if isinstance(earlier, RunnerV1) else stock
        )
        self._prompts: dict[str, NDArray[np.int64]] = {}

    def install(self) -> None:
        """Stand in for the runner's method."""
        self._runner._get_prompt_logprobs_dict = self.step

    def step(self, hidden_states: torch.Tensor, num_scheduled_tokens: Mapping[str, int]) -> dict[str, Vllm]:
        """Marked requests here, the others by vLLM."""
        runner = self._runner
        asked: dict[str, int] = runner.num_prompt_logprobs
        marks = {name: _mark_in(runner.requests[name].sampling_params) for name in asked}
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
                parameters = runner.requests[name].sampling_params
                self._scorer.add(name, marks[name], _given_in(parameters))
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

    def _targets(self, pieces: Pieces) -> torch.Tensor:
        ids = [self._prompts[span.request_id][positions + 1] for span, positions in pieces]
        return self._scorer.on_device(np.concatenate(ids))

    def _forget_aborted(self) -> None:
        for name in [name for name in self._prompts if name not in self._runner.requests]:
            del self._prompts[name]
            self._scorer.remove(name)


class RunnerV2:
    """Stands for the object of vLLM's second model runner that makes prompt rows."""

    def __init__(self, stock: Vllm, scorer: PromptScorer) -> None:
        self.stock = stock
        self._scorer = scorer

    def __getattr__(self, name: str) -> Vllm:
        return getattr(self.stock, name)

    def add_request(self, req_id: str, req_idx: int, sampling_params: Vllm) -> None:
        """Take a request, as vLLM calls it."""
        self.stock.add_request(req_id, req_idx, sampling_params)
        mark = _mark_in(sampling_params)
        if mark is not _NO_MARK:
            self.stock.uses_prompt_logprobs[req_idx] = False
            self._scorer.add(req_id, mark, _given_in(sampling_params))

    def remove_request(self, req_id: str) -> None:
        """Forget a request, as vLLM calls it."""
        self.stock.remove_request(req_id)
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
        results: dict[str, Vllm] = self.stock.compute_prompt_logprobs(
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

            def targets(pieces: Pieces) -> torch.Tensor:
                slots = np.repeat([span.slot for span, _ in pieces], [len(at) for _, at in pieces])
                following = np.concatenate([at for _, at in pieces]) + 1
                rows = all_token_ids[self._scorer.on_device(slots), self._scorer.on_device(following)]
                return rows.to(torch.int64)

            made = self._scorer.step(spans, hidden_states, targets)
            results |= {name: _tensors(*columns) for name, columns in made.items()}
        return results


_NO_MARK: Any = object()  # Any: stands for a missing mark, which may be None


def _mark_in(sampling_params: Vllm) -> Mark | None:
    extra = getattr(sampling_params, "extra_args", None) or {}
    mark: Mark | None = extra.get(MARK, _NO_MARK)
    return mark


def _given_in(sampling_params: Vllm) -> tuple[int, bytes] | None:
    extra = getattr(sampling_params, "extra_args", None) or {}
    given: tuple[int, bytes] | None = extra.get(GIVEN)
    return given


def _tensors(ids: torch.Tensor, logprobs: torch.Tensor, ranks: torch.Tensor) -> Vllm:
    from vllm.v1.outputs import LogprobsTensors

    return LogprobsTensors(ids, logprobs, ranks)
