"""Requests of vLLM: sequences go in while others run, and results come out as they are done."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from typing import Any

from tokscore.dataset.errors import EngineError
from tokscore.scoring.engines.contract import TokenSequence
from tokscore.scoring.engines.vllm.results import KEEP, lacks_rows
from tokscore.scoring.engines.vllm.surroundings import engine_errors, quiet
from tokscore.scoring.engines.vllm.windows import Windows, n_new
from tokscore.scoring.engines.vllm.worker.marks import GIVEN, MARK, mark_of, packed

# How a prompt's rows are taken: scored in the workers, vLLM's own tensors, or vLLM's flat lists.
FUSED, TENSORS, FLAT = PATHS = ("fused", "tensors", "flat")
# Batches that wait in vLLM, so that it never waits for Python, and batches sorted by length at a time.
QUEUED_BATCHES = {"cpu": 2, "gpu": 4}
WINDOW_BATCHES = {"cpu": 4, "gpu": 32}

# Classes of vllm: the library is not typed for us.
Vllm = Any


class Requests:
    """Of one vLLM that runs.

    Attributes:
        n_computed: Tokens that the model computed.
        n_rescored: Sequences whose rows were in the cache, so that they were scored again without it.
    """

    def __init__(self, llm: Vllm, longest: int, batch_tokens: int, device: str) -> None:
        """None are there yet.

        Args:
            llm: A `vllm.LLM`.
            longest: Most tokens of a sequence.
            batch_tokens: Of one step of the model.
            device: `cpu` or `gpu`.
        """
        self._llm, self._engine, self._longest = llm, llm.llm_engine, longest
        self._queued_tokens = batch_tokens * QUEUED_BATCHES[device]
        self._window_tokens = batch_tokens * WINDOW_BATCHES[device]
        self._n_requests = self._n_trees = 0
        self.n_computed = self.n_rescored = 0

    def run(
        self,
        sequences: Iterable[TokenSequence],
        path: str,
        add: Callable[[TokenSequence, str | None], str],
        *,
        shares: bool = False,
    ) -> Generator[tuple[TokenSequence, Vllm | None]]:
        """A bounded loop: requests go in while others run, and results come out as they are done.

        Args:
            sequences: In any order.
            path: One of `PATHS`.
            add: Hands one to vLLM with the name of its tree, and returns that of the request.
            shares: Whether branches read what their trunks left in the prefix cache.

        Returns:
            Each with what vLLM returned; None where no row is wanted.

        Raises:
            EngineError: vLLM failed.
        """
        windows = Windows(sequences, self._window_tokens)
        running: dict[str, TokenSequence] = {}
        trees: dict[int, str] = {}
        n_queued = 0
        try:
            while True:
                while n_queued < self._queued_tokens and (sequence := windows.take()) is not None:
                    if sequence.n_rows == 0 and not (shares and sequence.n_for_branches):
                        yield sequence, None
                        continue
                    with quiet(), engine_errors("failed"):
                        tree = self._tree_of(sequence, trees) if shares else None
                        running[add(sequence, tree)] = sequence
                    n_queued += n_new(sequence)
                if not running:
                    return
                # While vLLM is busy with what it has.
                windows.look_ahead(self._queued_tokens)
                with quiet(), engine_errors("failed"):
                    outputs = self._engine.step()
                for output in outputs:
                    done = running.pop(output.request_id, None) if output.finished else None
                    if done is not None:
                        n_queued -= n_new(done)
                        if path != FUSED:
                            self.n_computed += len(output.prompt_token_ids)
                        elif done.trunk is not None and lacks_rows(output.prompt_logprobs, done):
                            # Its computed range starts behind its first row.
                            self.n_rescored += 1
                            again = done._replace(trunk=None, n_shared=0)
                            with quiet(), engine_errors("failed"):
                                running[add(again, None)] = again
                            n_queued += n_new(again)
                            continue
                        yield done, output
        finally:
            if path == FUSED:
                with suppress(Exception), quiet():
                    self.n_computed = sum(self._llm.collective_rpc("tokscore_n_computed")[-1:])
            if running:
                with suppress(Exception), quiet():  # The engine may be gone.
                    self._engine.abort_request(list(running))

    def _tree_of(self, sequence: TokenSequence, trees: dict[int, str]) -> str | None:
        """The name of the tree in whose part of the cache a sequence is kept; None outside of trees."""
        if sequence.trunk is None and not sequence.n_for_branches:
            return None
        tree = None if sequence.trunk is None else trees.get(sequence.trunk)
        if tree is None:
            self._n_trees += 1
            tree = str(self._n_trees)
        trees[sequence.key] = tree
        return tree

    def add(
        self,
        sequence: TokenSequence,
        path: str,
        top_k: int,
        tree: str | None = None,
        first: int | None = None,
    ) -> str:
        """Hand a sequence to vLLM; the name of the request.

        Args:
            sequence: With rows that are wanted, or branches.
            path: One of `PATHS`.
            top_k: Alternatives of each token.
            tree: Whose part of the cache it reads and fills; None for none.
            first: Where a scorer of another kind puts its first row.
        """
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        token_ids = sequence.token_ids
        if len(token_ids) > self._longest:
            raise EngineError(
                f"sequence {sequence.key} has {len(token_ids)} tokens; vLLM was started for {self._longest}."
            )
        extra: dict[str, object] = {} if path == FLAT else {KEEP: True}
        if path == FUSED:
            mark = mark_of(sequence)
            extra[MARK] = mark if first is None else [*(mark or ([0, sequence.n_rows], [], [])), [first]]
            at_ids = sequence.at_rows()
            if at_ids is not None:
                extra[GIVEN] = packed(at_ids)
            # What follows the last wanted token does not change its score.
            last = int(sequence.positions()[-1]) + 2 if sequence.n_rows else 1
            token_ids = token_ids[: max(last, sequence.n_for_branches)]
        reads = {} if tree is None else {"skip_reading_prefix_cache": sequence.trunk is None}
        parameters = SamplingParams(
            max_tokens=1,
            temperature=0,
            prompt_logprobs=top_k,
            flat_logprobs=path == FLAT,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            extra_args=extra or None,
            **reads,
        )
        self._n_requests += 1
        name = str(self._n_requests)
        prompt: dict[str, object] = {"type": "token", "prompt_token_ids": token_ids.tolist()}
        if tree is not None:
            # So that no branch finds more than its own tree has computed.
            prompt["cache_salt"] = tree
        self._engine.add_request(name, prompt, parameters)
        return name

    def close(self) -> None:
        """Let go of vLLM."""
        del self._llm, self._engine
