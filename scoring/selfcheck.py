"""Checking an engine: against a float32 reference, and against itself in another order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tokscore.dataset.errors import EngineError, InputError, UsageError, agreeing, counted
from tokscore.dataset.tokens import RenderedConversation
from tokscore.scoring.agreement import Agreement, agreement, is_bitwise_equal
from tokscore.scoring.engines.child import Child
from tokscore.scoring.engines.contract import SequenceScores, TokenSequence
from tokscore.scoring.engines.registry import ENGINES
from tokscore.scoring.engines.row_checks import check_scores

if TYPE_CHECKING:
    from tokscore.dataset.manifest import ModelIdentity, Setting
    from tokscore.rendering.source import TokenSource
    from tokscore.scoring.engines.spec import EngineSpec

# Conversations of users and assistants alone, which the templates of all chat models take.
SAMPLE_CONVERSATIONS = Path(__file__).with_name("selfcheck.jsonl")
MAX_TOKENS_TOTAL = 20_000
Score = Callable[[Iterable[TokenSequence]], Iterator[tuple[int, SequenceScores]]]

# Sequences that are scored together in the shuffled pass, at most.
GROUP_SIZE = 4


class Tolerance(NamedTuple):
    """The most that logprobs may differ, in nats.

    Attributes:
        max_delta: Any one of them, from the reference and between two passes of the engine.
        mean_delta: On average, from the reference.
    """

    max_delta: float
    mean_delta: float


# float32: two implementations of a model add in different orders; over a 135M-parameter model on a CPU that
# came to 1.1e-4 at most, 7e-6 on average. bfloat16: it has 8 significant bits, so a logit near 20 is known to
# 1/16; the same model came to 1.0 and 0.044. The tolerances are about twice that. float16 has 3 bits more.
TOLERANCES: Mapping[str, Tolerance] = {
    "float32": Tolerance(2e-4, 2e-5),
    "bfloat16": Tolerance(2.0, 0.1),
    "float16": Tolerance(0.25, 0.0125),
}


class Chosen(NamedTuple):
    """The conversations that an engine is checked with.

    Attributes:
        sequences: Their tokens.
        conversation_ids: For messages, in the same order.
        n_left_out: Conversations that came after the limit was reached, or do not fit the model.
        n_failed: Conversations that could not be rendered.
    """

    sequences: list[TokenSequence]
    conversation_ids: list[str]
    n_left_out: int
    n_failed: int


class Line(NamedTuple):
    """One condition: passed where `found` is at most `limit`.

    Attributes:
        name: Dotted name of a number, such as `noise_floor.max`.
        found: The number.
        limit: The most it may be.
    """

    name: str
    found: float
    limit: float

    @property
    def is_passed(self) -> bool:
        """False for what is not a number."""
        return self.found <= self.limit


class NoiseFloor(NamedTuple):
    """An engine against its own first pass, in nats: how much of a difference is no difference.

    Attributes:
        max: The larger of the two passes' values; so are `mean` and `p99`.
        mean: On average.
        p99: The 99th percentile.
        warm: A second pass in the same order.
        shuffled: A pass in random order, in groups of 1 to 4, so that other sequences share a batch.
    """

    max: float
    mean: float
    p99: float
    warm: Agreement
    shuffled: Agreement


class SelfCheck(NamedTuple):
    """The result of a self-check.

    Attributes:
        engine: The engine that was checked.
        reference: What it was compared with.
        details: What the engine says of itself.
        n_conversations: Scored by both.
        against_reference: The engine's first pass against the reference.
        noise_floor: The engine against itself.
        is_deterministic: Whether the second pass gave the same bits.
        lines: Conditions, with what was found.
    """

    engine: ModelIdentity
    reference: ModelIdentity
    details: dict[str, Setting]
    n_conversations: int
    against_reference: Agreement
    noise_floor: NoiseFloor
    is_deterministic: bool
    lines: list[Line]

    @property
    def is_passed(self) -> bool:
        """Whether all conditions hold."""
        return all(line.is_passed for line in self.lines)


def choose(source: TokenSource, spec: EngineSpec, max_tokens_total: int = MAX_TOKENS_TOTAL) -> Chosen:
    """The first conversations of a source, whole, as far as they fit.

    Args:
        source: Conversations or a token dataset; each is rendered once.
        spec: The model, whose maximum length and vocabulary hold.
        max_tokens_total: Tokens of all of them at most.

    Raises:
        UsageError: Not even the first one fits.
        InputError: No conversation has a token to score.
    """
    sequences: list[TokenSequence] = []
    ids: list[str] = []
    n_tokens = n_left_out = n_failed = 0
    is_full = False
    for item in (item for part in source.parts for item in source.read(part)):
        if not isinstance(item, RenderedConversation):
            n_failed += 1
            continue
        token_ids = item.tokens.token_ids
        fits_model = 2 <= len(token_ids) <= spec.model.max_length
        if fits_model and not is_full and n_tokens + len(token_ids) > max_tokens_total:
            is_full = True
            if not sequences:
                raise UsageError(
                    f"conversation {item.row.conversation_id} has {counted(len(token_ids), 'token')}; the "
                    f"limit for all is {max_tokens_total:,}. Raise it with `max_tokens_total`."
                )
        if is_full or not fits_model or int(token_ids.max()) >= spec.model.vocab_size:
            n_left_out += 1
            continue
        sequences.append(TokenSequence(len(sequences), token_ids))
        ids.append(item.row.conversation_id)
        n_tokens += len(token_ids)
    if not sequences:
        raise InputError(
            f"no conversation can be scored with {spec.model.name}: {n_failed} could not be rendered, "
            f"{n_left_out} {agreeing(n_left_out, 'has', 'have')} fewer than 2 tokens, too many, or ids "
            "beyond its vocabulary."
        )
    return Chosen(sequences, ids, n_left_out, n_failed)


def default_tolerance(dtype: str) -> Tolerance:
    """The tolerance for an engine that computes in `dtype`; the widest for other types."""
    return TOLERANCES.get(dtype, TOLERANCES["bfloat16"])


def selfcheck(
    chosen: Chosen,
    spec: EngineSpec,
    reference: EngineSpec,
    tolerance: Tolerance,
    *,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _step: None,
) -> SelfCheck:
    """Score the same sequences with an engine, three times, and with a reference.

    The engine is closed before the reference starts: the two never share memory.

    Args:
        chosen: What to score.
        spec: The engine to check.
        reference: The engine to believe, of the same model, top-k and temperature.
        tolerance: What may differ.
        seed: Of the shuffled order.
        progress: Told what begins.

    Raises:
        EngineError: One of them cannot start, failed, or left out rows.
        ConversationError: NaN, a logprob above zero, or numbers that no distribution has together.
    """
    longest = max(len(sequence.token_ids) for sequence in chosen.sequences)
    progress(f"starting {spec.identity.engine} in {spec.identity.dtype}")
    engine = spec.start(longest)
    try:
        progress("first pass")
        cold = _pass(engine.score, [chosen.sequences], chosen, spec)
        progress("second pass")
        again = _pass(engine.score, [chosen.sequences], chosen, spec)
        progress("pass in random order")
        shuffled = _pass(engine.score, _groups(chosen.sequences, seed), chosen, spec)
        details = dict(engine.details)
    finally:
        engine.close()
    noise_floor = _noise_floor(agreement(again, cold), agreement(shuffled, cold))
    is_deterministic = is_bitwise_equal(again, cold)
    progress(f"starting {reference.identity.engine} in {reference.identity.dtype}")
    progress("reference pass")
    believed = _reference_pass(reference, longest, chosen, apart=spec.identity.engine == "vllm")
    found = agreement(cold, believed)
    return SelfCheck(
        engine=spec.identity,
        reference=reference.identity,
        details=details,
        n_conversations=len(chosen.sequences),
        against_reference=found,
        noise_floor=noise_floor,
        is_deterministic=is_deterministic,
        lines=[
            Line("against_reference.max", found.max, tolerance.max_delta),
            Line("against_reference.mean", found.mean, tolerance.mean_delta),
            Line("noise_floor.max", noise_floor.max, tolerance.max_delta),
        ],
    )


def _reference_pass(spec: EngineSpec, longest: int, chosen: Chosen, *, apart: bool) -> list[SequenceScores]:
    """The scores of the reference; `apart` in a process of its own, as vLLM changes transformers."""
    if not apart:
        engine = spec.start(longest)
        try:
            return _pass(engine.score, [chosen.sequences], chosen, spec)
        finally:
            engine.close()
    child: Child[SequenceScores] = Child(ENGINES[spec.identity.engine].target, "score", spec, longest)
    try:
        return _pass(child.call, [chosen.sequences], chosen, spec)
    finally:
        child.close()


def _pass(
    score: Score, groups: Iterable[Sequence[TokenSequence]], chosen: Chosen, spec: EngineSpec
) -> list[SequenceScores]:
    """Checked scores in the order of `chosen`, one call of the engine a group."""
    found: dict[int, SequenceScores] = {}
    for group in groups:
        for key, scores in score(group):
            sequence = chosen.sequences[key]
            check_scores(
                scores,
                sequence.n_rows,
                spec.settings.top_k,
                chosen.conversation_ids[key],
                sequence.targets(),
                dtype=spec.identity.dtype,
            )
            found[key] = scores
    missing = [name for key, name in enumerate(chosen.conversation_ids) if key not in found]
    if missing:
        raise EngineError(
            f"the {spec.identity.engine} engine returned nothing for {len(missing)} of "
            f"{counted(len(chosen.sequences), 'conversation')}; the first is {missing[0]}."
        )
    return [found[key] for key in range(len(chosen.sequences))]


def _groups(sequences: Sequence[TokenSequence], seed: int) -> Iterator[list[TokenSequence]]:
    rng = np.random.default_rng(seed)
    order = [sequences[i] for i in rng.permutation(len(sequences))]
    start = 0
    while start < len(order):
        stop = start + int(rng.integers(1, GROUP_SIZE, endpoint=True))
        yield order[start:stop]
        start = stop


def _noise_floor(warm: Agreement, shuffled: Agreement) -> NoiseFloor:
    return NoiseFloor(
        max=max(warm.max, shuffled.max),
        mean=max(warm.mean, shuffled.mean),
        p99=max(warm.p99, shuffled.p99),
        warm=warm,
        shuffled=shuffled,
    )
