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

from tokscore.scoring.engines.contract import TokenSequence
from tokscore.scoring.engines.vllm.attention_heads import check_heads
from tokscore.scoring.engines.vllm.fused import score_rows
from tokscore.scoring.engines.vllm.fused_check import check_fused_pass
from tokscore.scoring.given.ids import stacked

# Key of a request's `SamplingParams.extra_args`; its value is None where all rows are wanted, otherwise what
# `mark_of` makes of a sequence.
MARK = "tokscore"
# Another key: the ids that are given for each wanted row, as `packed` makes it; absent where there are none.
GIVEN = "tokscore_given"

# Runs of wanted positions, positions of other ids, and these.
Mark = Sequence[Sequence[int]]
# Among other ids: the token that follows the position.
OWN = -1

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
    tokscore_scorer: PromptScorer

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
        scorer = self.tokscore_scorer = PromptScorer(runner, given)
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

    def tokscore_n_computed(self) -> int:
        """Prompt tokens of marked requests that the model has computed here."""
        scorer: PromptScorer = self.tokscore_scorer
        return scorer.n_computed


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


class Rows(NamedTuple):
    """Rows of one request, on the model's device, the realised token first.

    Attributes:
        ids: int32 [rows, 1 + k + 1], the position last.
        logprobs: float32 [rows, 1 + k + 1 + given], the entropy and the given ids last.
        ranks: int32 [rows].
    """

    ids: torch.Tensor
    logprobs: torch.Tensor
    ranks: torch.Tensor


@dataclass(slots=True)
class _Request:
    """What is wanted of one prompt, and what is made of it.

    Attributes:
        wanted: Positions of the rows, ascending; one may be there several times. None where all are wanted.
        others: For each of them an id to be scored, `OWN` for the token that follows; None where all are own.
        given: For each of them further ids to be scored, int32 [rows, width]; None where there are none.
        n_done: Position up to which the rows are made.
        blocks: Rows, and their positions.
    """

    wanted: NDArray[np.int64] | None
    others: NDArray[np.int64] | None = None
    given: NDArray[np.int32] | None = None
    n_done: int = 0
    blocks: list[tuple[NDArray[np.int64], Rows]] = field(default_factory=list)

    def positions(self, start: int, stop: int) -> NDArray[np.int64]:
        """The wanted positions in [start, stop)."""
        if self.wanted is None:
            return np.arange(start, stop)
        first, last = np.searchsorted(self.wanted, (start, stop))
        return self.wanted[first:last]

    def others_at(self, start: int, stop: int) -> NDArray[np.int64]:
        """The ids to be scored at the wanted positions in [start, stop)."""
        if self.wanted is None or self.others is None:
            return np.full(len(self.positions(start, stop)), OWN, np.int64)
        first, last = np.searchsorted(self.wanted, (start, stop))
        return self.others[first:last]

    def given_at(self, start: int, stop: int) -> NDArray[np.int32] | None:
        """The given ids of the rows about the wanted positions in [start, stop)."""
        if self.given is None:
            return None
        first, last = (start, stop) if self.wanted is None else np.searchsorted(self.wanted, (start, stop))
        return self.given[first:last]

    @property
    def n_given(self) -> int:
        """Width of the given ids."""
        return 0 if self.given is None else self.given.shape[1]

    def go_back_to(self, start: int) -> None:
        """Forget the rows from a position on: the prompt is computed anew from there."""
        kept = []
        for positions, rows in self.blocks:
            n = int(np.searchsorted(positions, start))
            if n:
                kept.append((positions[:n], Rows(*(column[:n] for column in rows))))
        self.blocks = kept


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
        self._requests: dict[str, _Request] = {}
        self.n_computed = 0
        vocab_size = runner.model_config.get_vocab_size()
        self._chunk_rows = max(1, settings.logits_bytes // (4 * vocab_size))
        dtype = runner.model_config.dtype
        in_float32 = settings.head_in_float32 and dtype != torch.float32
        self._heads = _float32_heads(runner.model) if in_float32 else []
        self.head_dtype = "float32" if in_float32 else str(dtype).removeprefix("torch.")

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._requests

    def add(self, request_id: str, mark: Mark | None, given: tuple[int, bytes] | None) -> None:
        """A new marked request, or one that starts over."""
        wanted, others = (None, None) if mark is None else _wanted_of(mark)
        at_ids = None if given is None else _unpacked(given)
        self._requests[request_id] = _Request(wanted, others, at_ids)

    def remove(self, request_id: str) -> None:
        """Forget a request, if it is known."""
        self._requests.pop(request_id, None)

    def step(
        self,
        spans: Sequence[Span],
        hidden_states: torch.Tensor,
        targets_of: Callable[[Sequence[tuple[Span, NDArray[np.int64]]]], torch.Tensor],
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
            targets, at = targets_of(pieces), np.concatenate([positions for _, positions in pieces])
            others = [self._requests[span.request_id].others_at(span.start, span.stop) for span, _ in pieces]
            if any((ids != OWN).any() for ids in others):
                ids = self.on_device(np.concatenate(others))
                targets = torch.where(ids == OWN, targets, ids)
            given = stacked(
                [self._requests[span.request_id].given_at(span.start, span.stop) for span, _ in pieces],
                [len(positions) for _, positions in pieces],
            )
            at_ids = None if given is None else self.on_device(given.astype(np.int64))
            block = self._score(hidden_states, self.on_device(rows), targets, self.on_device(at), at_ids)
            first = 0
            for span, positions in pieces if block is not None else ():
                if len(positions):
                    part = slice(first, first + len(positions))
                    request = self._requests[span.request_id]
                    made = Rows(*(column[part] for column in block))  # type: ignore[union-attr]
                    # Other requests of the step may have more given ids.
                    width = self._settings.top_k + 2 + request.n_given
                    request.blocks.append((positions, made._replace(logprobs=made.logprobs[:, :width])))
                    first += len(positions)
        return {span.request_id: self._finish(span.request_id) for span in spans if span.is_last}

    def on_device(self, values: NDArray[np.int64]) -> torch.Tensor:
        """The values as a tensor beside the model."""
        return torch.from_numpy(values).to(self.device, non_blocking=True)

    def _finish(self, request_id: str) -> Rows:
        request = self._requests.pop(request_id)
        blocks = [rows for _, rows in request.blocks]
        if not blocks:
            top_k = self._settings.top_k
            blocks = [
                Rows(
                    torch.empty((0, top_k + 2), dtype=torch.int32),
                    torch.empty((0, top_k + 2 + request.n_given)),
                    torch.empty(0, dtype=torch.int32),
                )
            ]
        return Rows(
            *(column[0] if len(column) == 1 else torch.cat(column) for column in zip(*blocks, strict=True))
        )

    def _score(
        self,
        hidden_states: torch.Tensor,
        rows: torch.Tensor,
        targets: torch.Tensor,
        positions: torch.Tensor,
        at_ids: torch.Tensor | None,
    ) -> Rows | None:
        """Scores of rows of the hidden states; None on workers that get no logits."""
        n, top_k = len(rows), self._settings.top_k
        n_given = 0 if at_ids is None else at_ids.shape[1]
        made = Rows(
            torch.empty((n, top_k + 2), dtype=torch.int32, device=self.device),
            torch.empty((n, top_k + 2 + n_given), dtype=torch.float32, device=self.device),
            torch.empty(n, dtype=torch.int32, device=self.device),
        )
        with self._float32_logits():
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


def mark_of(sequence: TokenSequence) -> Mark | None:
    """What is wanted of a sequence: runs of its own positions, then positions and ids of others.

    The runs are half-open, [start, stop, start, stop, ...]. None where all of its own tokens are wanted.
    """
    others = sequence.others
    if sequence.wanted is None and others is None:
        return None
    runs = [0, len(sequence.token_ids) - 1] if sequence.wanted is None else runs_of(sequence.wanted)
    if others is None:
        return [runs, [], []]
    return [runs, others.positions.tolist(), others.token_ids.tolist()]


def _wanted_of(mark: Mark) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
    """Positions of the rows, and the ids to be scored there, `OWN` for the token that follows."""
    runs, positions, ids = mark
    pairs = np.asarray(runs, np.int64).reshape(-1, 2)
    own = np.concatenate([np.empty(0, np.int64), *(np.arange(start, stop) for start, stop in pairs)])
    if not positions:
        return own, None
    wanted = np.concatenate([own, np.asarray(positions, np.int64)])
    order = np.argsort(wanted, kind="stable")
    others = np.concatenate([np.full(len(own), OWN, np.int64), np.asarray(ids, np.int64)])
    return wanted[order], others[order]


def runs_of(wanted: NDArray[np.bool_]) -> list[int]:
    """The true positions as half-open runs [start, stop, start, stop, ...]."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], wanted, [False]]).astype(np.int8)))
    return [int(edge) for edge in edges]


def packed(given: NDArray[np.int32]) -> tuple[int, bytes]:
    """Given ids [rows, width] as what a request can carry: the width, and the ids as little-endian bytes."""
    return given.shape[1], given.astype("<i4").tobytes()


def _unpacked(given: tuple[int, bytes]) -> NDArray[np.int32]:
    width, ids = given
    return np.frombuffer(ids, "<i4").reshape(-1, width) if width else np.empty((0, 0), np.int32)


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
        mark = _mark_in(sampling_params)
        if mark is not _NO_MARK:
            self._stock.uses_prompt_logprobs[req_idx] = False
            self._scorer.add(req_id, mark, _given_in(sampling_params))

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
