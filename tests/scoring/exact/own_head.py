"""A model of vLLM held against its own head, kept in a file and loaded beside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tokscore.scoring.engines.contract import TokenSequence
from tokscore.scoring.engines.spec import EngineSpec
from tokscore.scoring.exact.divergences import ExactTokens
from tokscore.scoring.exact.vllm_engines import KeepingEngine

LONGEST = 256
# Bytes that a model without weights may have, such as the frequencies of positions.
SMALL_TABLES = 4096
Worker = Any  # of vLLM


def _n_bytes(worker: Worker) -> int:
    """Of the model that was loaded beside the one that runs; weights on torch's meta device have no memory."""
    model = worker._pair._teacher.__self__
    return sum(each.nbytes for each in [*model.parameters(), *model.buffers()] if not each.is_meta)


def _n_bytes_of_head(worker: Worker) -> int:
    """Of the weights that make logits, in the model that runs."""
    model = worker.model_runner.model
    head = getattr(model, "lm_head", None) or model.model.embed_tokens
    return sum(each.nbytes for each in head.parameters())


class OwnHead(KeepingEngine):
    """Runs all sequences twice: to keep hidden states and head, then to compare with both."""

    def __init__(self, spec: EngineSpec, states: str, head: str) -> None:
        super().__init__(spec, LONGEST, states, head)
        self._files = states, head

    def compare(self, sequences: Iterable[TokenSequence]) -> Iterator[tuple[int, ExactTokens]]:
        """Key and values of every sequence."""
        placed: dict[int, TokenSequence] = {}
        n_rows = 0
        for each in sequences:
            placed[n_rows] = each
            n_rows += each.n_rows
        at_places = [each._replace(key=first) for first, each in placed.items()]
        assert len(list(self.keep(at_places))) == len(placed)
        self._call("tokscore_compare", self._worker_settings(), *self._files, [0.5])
        [beside], [head] = (self._llm.collective_rpc(each) for each in (_n_bytes, _n_bytes_of_head))
        assert head <= beside < head + SMALL_TABLES, "more than a head is in memory"
        for first, values in self._rows(at_places):
            yield placed[first].key, ExactTokens.of_packed(values)
