"""The reference engine: transformers on torch, on the CPU or one CUDA device."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch

from tokscore.dataset.errors import InputError
from tokscore.scoring.engines.batching import WINDOW_BATCHES, Batching
from tokscore.scoring.engines.causality import check_causality
from tokscore.scoring.engines.checkpoint.positions import UNLIMITED_LENGTH, switch_length_of
from tokscore.scoring.engines.contract import SequenceScores, TokenSequence, last_line, windows
from tokscore.scoring.engines.key_values import branched, cache_argument, new_cache, reason_against
from tokscore.scoring.engines.loading import Model, engine_errors, first_run, load_model
from tokscore.scoring.engines.trees import TreeBatch, Trees, difference_of, make_tree, probe_length
from tokscore.scoring.given.ids import stacked
from tokscore.scoring.given.logits import given_logits

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from transformers import Cache as KeyValues

    from tokscore.dataset.manifest import ModelIdentity, Setting
    from tokscore.scoring.engines.spec import EngineSpec

# Tokens of one forward pass, padding included, by device.
BATCH_TOKENS = {"cpu": 2_048, "cuda": 16_384}
# A chunk of float32 logits stays below this, by device.
LOGITS_BYTES = {"cpu": 32 * 2**20, "cuda": 512 * 2**20}
# So does a block of their float64 softmax: on the CPU in the cache, and below where malloc asks the system.
SOFTMAX_BYTES = {"cpu": 4 * 2**20, "cuda": 512 * 2**20}
_PROBE_LENGTH = 16
# Columns of scores without given ids.
N_COLUMNS = 5


class TransformersEngine:
    """Scores with `AutoModelForCausalLM`; the softmax is taken in float64.

    Logits are made a chunk of rows at a time where the model's logits are just its head applied to its
    body's output, which is checked at load. Models that do more to them (soft caps, scales) run whole.

    Attributes:
        identity: What the manifest says of model and engine.
        max_length: Most tokens of one sequence.
        vocab_size: Width of the logits.
        details: Device and sizes.
        chunked: Whether logits are made in chunks.
        chunk_rows: Rows of one.
        batching: Which sequences run together.
        shares: Whether keys and values of a trunk are kept for its branches.
        n_computed: Tokens that went through the model.
        n_rescored: 0, since nothing that is kept gets lost.
    """

    n_rescored = 0

    def __init__(self, spec: EngineSpec, longest: int) -> None:  # noqa: ARG002 (needs no reservation)
        """Load the model.

        Raises:
            EngineError: Memory is short, or a package is missing.
            InputError: The weights do not fit the configuration, the model is no causal language model, or
                transformers cannot load or run it.
        """
        self.identity: ModelIdentity = spec.identity
        self.max_length = spec.model.max_length
        self.vocab_size = spec.model.vocab_size
        self._top_k = spec.settings.top_k
        self._temperature = spec.settings.temperature
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        batch_tokens = spec.settings.batch_tokens or BATCH_TOKENS[self._device.type]
        loaded = load_model(spec.model, spec.identity.dtype, self._device)
        self._model: Model = loaded.model
        self.chunk_rows = max(1, LOGITS_BYTES[self._device.type] // (4 * self.vocab_size))
        self.chunked = self._head_gives_the_logits()
        # transformers takes the longest sequence of a batch for the length of all.
        switch_length = switch_length_of(self._model.config.get_text_config()) or UNLIMITED_LENGTH
        self.batching = Batching(batch_tokens, switch_length if self.chunked else 0)
        self.shares, self.n_computed = False, 0
        self._cache_argument: str | None = None
        self.details: Mapping[str, Setting] = {
            "device": self._device.type,
            "batch_tokens": batch_tokens,
            "logits": f"{self.chunk_rows} rows at a time" if self.chunked else "a sequence at a time",
            **({"attention": loaded.attention} if loaded.attention else {}),
            **({"unused_weights": loaded.left_out} if loaded.left_out else {}),
            **({"quantization": loaded.quantization} if loaded.quantization else {}),
        }
        check_causality(
            self.score,
            self.vocab_size,
            self.max_length,
            name=self.identity.name,
            dtype=self.identity.dtype,
            quantization=loaded.quantization,
        )
        if spec.shares:
            reason = self._reason_against_sharing()
            self.shares = reason is None
            self.details |= {"sharing": "yes" if reason is None else f"no: {reason}"}

    def _reason_against_sharing(self) -> str | None:
        """Why sequences with a trunk are run whole; None where a few of them come out as they do whole."""
        config = self._model.config
        self._cache_argument = cache_argument(self._model.base_model if self.chunked else self._model)
        reason = reason_against(config) if self._cache_argument else "it takes no cache"
        probe = (
            None
            if reason
            else make_tree(self.vocab_size, self.max_length, probe_length(config.get_text_config()))
        )
        if probe is None:
            return reason or "the model takes too few tokens to tell"
        whole = dict(self.score(probe))
        self.shares = True
        try:
            return difference_of(dict(self.score(probe)), whole, self.identity.dtype)
        except Exception as error:  # noqa: BLE001 (a model's own code, which was not made for this)
            return last_line(error)
        finally:
            self.shares = False

    @torch.inference_mode()
    def _head_gives_the_logits(self) -> bool:
        generator = torch.Generator().manual_seed(0)
        length = min(_PROBE_LENGTH, self.max_length)
        ids = torch.randint(self.vocab_size, (1, length), generator=generator).to(self._device)
        with first_run(self.identity.name):
            logits = self._model(input_ids=ids, use_cache=False).logits
            if logits.shape[-1] != self.vocab_size:
                raise InputError(
                    f"{self.identity.name} gives {logits.shape[-1]} logits; "
                    f"its configuration says vocab_size {self.vocab_size}."
                )
            head, body = self._model.get_output_embeddings(), self._model.base_model
            if head is None or body is self._model:
                return False
            hidden = getattr(body(input_ids=ids, use_cache=False), "last_hidden_state", None)
            plain = None if hidden is None else head(hidden)
        # Bit for bit: the weak logits of a random model hardly show a soft cap.
        return plain is not None and torch.equal(plain, logits)

    def score(self, sequences: Iterable[TokenSequence]) -> Iterator[tuple[int, SequenceScores]]:
        """Key and scores of every sequence, the longest of each window first.

        Raises:
            EngineError: Out of memory, or the model failed.
        """
        if not self.shares:
            yield from self._score_whole(sequences)
            return
        for window in windows(sequences, WINDOW_BATCHES * self.batching.max_tokens):
            trees = Trees(window)
            yield from self._score_whole(trees.alone)
            for root in trees.roots:
                yield from self._score_tree(root, trees)

    def _score_whole(self, sequences: Iterable[TokenSequence]) -> Iterator[tuple[int, SequenceScores]]:
        for batch in self.batching.batches(sequences):
            with engine_errors(), torch.inference_mode():
                scores = self._score(batch)
            yield from zip((sequence.key for sequence in batch), scores, strict=True)

    def _score_tree(self, root: TokenSequence, trees: Trees) -> Iterator[tuple[int, SequenceScores]]:
        """A trunk, then its branches, and theirs; the keys and values on the way are kept."""
        waiting = [(TreeBatch([root], 0), new_cache(self._model.config))]
        while waiting:
            (batch, n_shared), cache = waiting.pop()
            with engine_errors(), torch.inference_mode():
                scores = self._score(batch, cache, n_shared)
            yield from zip((sequence.key for sequence in batch), scores, strict=True)
            for row, sequence in enumerate(batch):
                for branches in trees.batches(sequence, self.batching.max_tokens):
                    grows = any(trees.has_branches(each) for each in branches.sequences)
                    part = branched(cache, row, branches.n_shared, len(branches.sequences), grows=grows)
                    waiting.append((branches, part))

    @torch.inference_mode()
    def logits(
        self, batch: list[TokenSequence], chunk_rows: int | None = None
    ) -> list[Iterator[torch.Tensor]]:
        """Logits about the wanted tokens of each sequence of a batch, made as they are asked for.

        Args:
            batch: Sequences that `batching` lets run together.
            chunk_rows: Rows of a block, by default the engine's.

        Returns:
            For each sequence, blocks of [rows, vocab] of the model's type.
        """
        states, to_logits = self._run(batch)
        rows = chunk_rows or self.chunk_rows
        return [
            _blocks(states[row], _positions(sequence), rows, to_logits) for row, sequence in enumerate(batch)
        ]

    def _run(
        self, batch: list[TokenSequence], cache: KeyValues | None = None, n_cached: int = 0
    ) -> tuple[torch.Tensor, Callable[[torch.Tensor], torch.Tensor]]:
        """Hidden states from position `n_cached` on, [batch, tokens, width], and the head."""
        n_tokens = max(len(sequence.token_ids) for sequence in batch)
        padded = torch.zeros((len(batch), n_tokens - n_cached), dtype=torch.int64)
        mask = torch.zeros((len(batch), n_tokens), dtype=torch.int64)
        for row, sequence in enumerate(batch):
            length = len(sequence.token_ids)
            new = sequence.token_ids[n_cached:].astype(np.int64)
            padded[row, : length - n_cached] = torch.from_numpy(new)
            mask[row, :length] = 1
            self.n_computed += len(new)
        arguments: dict[str, object] = {
            "input_ids": padded.to(self._device),
            "attention_mask": mask.to(self._device),
            "use_cache": cache is not None,
        }
        if cache is not None and self._cache_argument is not None:
            arguments[self._cache_argument] = cache
        if self.chunked:
            return self._model.base_model(**arguments).last_hidden_state, self._model.get_output_embeddings()
        return self._model(**arguments).logits, lambda logits: logits

    def _score(
        self, batch: list[TokenSequence], cache: KeyValues | None = None, n_cached: int = 0
    ) -> list[SequenceScores]:
        """Scores of each sequence; the rows of all of them go through the head together."""
        states, to_logits = self._run(batch, cache, n_cached)
        width = states.shape[1]
        states = states.flatten(0, 1)
        positions = torch.cat(
            [row * width + _positions(sequence) - n_cached for row, sequence in enumerate(batch)]
        )
        targets = [sequence.targets().astype(np.int64) for sequence in batch]
        realised = torch.from_numpy(np.concatenate(targets)).to(self._device)
        given = [sequence.at_rows() for sequence in batch]
        at_ids = stacked(given, [sequence.n_rows for sequence in batch])
        blocks = _blocks(states, positions, self.chunk_rows, to_logits)
        rows = range(0, max(len(realised), 1), self.chunk_rows)
        parts = [
            score_logits(
                logits,
                realised[start : start + self.chunk_rows],
                self._top_k,
                self._temperature,
                None if at_ids is None else at_ids[start : start + self.chunk_rows],
            )
            for logits, start in zip(blocks, rows, strict=True)
        ]
        ends = np.cumsum([len(column) for column in targets])[:-1]
        columns = {
            field.name: np.split(np.concatenate([getattr(part, field.name) for part in parts]), ends)
            for field in dataclasses.fields(SequenceScores)
            if getattr(parts[0], field.name) is not None
        }
        return [
            SequenceScores(**{name: column[row] for name, column in columns.items()}).at(given[row])
            for row in range(len(batch))
        ]

    def close(self) -> None:
        """Free the model."""
        self._model = None
        if self._device.type == "cuda":
            torch.cuda.empty_cache()


def _blocks(
    states: torch.Tensor,
    positions: torch.Tensor,
    n_rows: int,
    to_logits: Callable[[torch.Tensor], torch.Tensor],
) -> Iterator[torch.Tensor]:
    """Logits at some positions of [positions, width], `n_rows` at a time."""
    for at in torch.split(positions, n_rows):
        yield to_logits(states[at])


def _positions(sequence: TokenSequence) -> torch.Tensor:
    """The position whose logits each row is about, int64 [rows], on the CPU."""
    return torch.from_numpy(sequence.positions())


def score_logits(
    logits: torch.Tensor,
    token_ids: torch.Tensor,
    top_k: int,
    temperature: float = 1.0,
    at_ids: NDArray[np.int32] | None = None,
) -> SequenceScores:
    """Scores of tokens under the softmax of `logits / temperature`.

    The softmax is taken in float64, so that each float32 result is the nearest to the exact value.

    Args:
        logits: [rows, vocab], any float type; -inf rules an id out.
        token_ids: The realised tokens, int64 [rows].
        top_k: Alternatives to return, 0 to vocab.
        temperature: Above 0.
        at_ids: Further ids whose logprobs are wanted, int32 [rows, width], -1 to pad.

    Returns:
        One row per row of `logits`.
    """
    rows = max(1, SOFTMAX_BYTES[logits.device.type] // (8 * logits.shape[1]))
    given = None if at_ids is None else torch.from_numpy(at_ids.astype(np.int64)).to(logits.device)
    blocks = [
        _score_block(
            block.float(),
            ids[:, None],
            top_k,
            temperature,
            None if given is None else given[start * rows : (start + 1) * rows],
        )
        for start, (block, ids) in enumerate(
            zip(torch.split(logits, rows), torch.split(token_ids, rows), strict=True)
        )
    ]
    columns = [torch.cat(column).cpu().numpy() for column in zip(*blocks, strict=True)]
    scores = SequenceScores(*columns[:N_COLUMNS])
    return scores if at_ids is None else dataclasses.replace(scores, at_ids=at_ids, at_logprobs=columns[-1])


def _score_block(
    logits: torch.Tensor,
    token_ids: torch.Tensor,
    top_k: int,
    temperature: float,
    at_ids: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    """Logprobs, ranks, top ids, top logprobs and entropy for float32 [rows, vocab] and int64 [rows, 1].

    With int64 `at_ids` [rows, width] their logprobs come last.
    """
    given = None if at_ids is None else given_logits(logits, at_ids)
    realised = logits.gather(1, token_ids)
    ranks = (logits >= realised).sum(1, dtype=torch.int32)
    top_logits, top_ids = logits.topk(top_k, dim=1)
    peak = logits.amax(1, keepdim=True).double()
    below_peak = (logits - peak).div_(temperature)
    weights = below_peak.exp()
    total = weights.sum(1, keepdim=True)
    log_total = total.log()
    # An id without mass adds nothing to the entropy, where 0 * -inf would be NaN.
    below_peak.clamp_(min=torch.finfo(torch.float64).min)
    entropy = log_total[:, 0] - torch.linalg.vecdot(weights, below_peak) / total[:, 0]
    found = (
        ((realised - peak) / temperature - log_total)[:, 0].float(),
        ranks,
        top_ids.int(),
        ((top_logits - peak) / temperature - log_total).float(),
        entropy.float(),
    )
    return found if given is None else (*found, ((given - peak) / temperature - log_total).float())
