"""The rate of an engine, measured on a little of what it is to score."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from tokscore.dataset.choices import OnError
from tokscore.dataset.claims.commit import part_name
from tokscore.dataset.manifest import Part
from tokscore.dataset.resuming import prepare_output
from tokscore.rendering.plan_size import beginning, conversation_id, sampled_parts

if TYPE_CHECKING:
    import pyarrow as pa

    from tokscore.dataset.manifest import InputFile, Setting, TokenizerIdentity
    from tokscore.rendering.executors.work import Tell
    from tokscore.rendering.tokenizers.text_ids import TextIds
    from tokscore.scoring.score_work import ScoreWork
    from tokscore.scoring.spool import Item

# Of the first round, in which engines compile and warm up; each further one has twice as many.
FIRST_TOKENS = 2_048
# A round of so many seconds in the engine is the last.
LEAST_S = 5.0
SEQUENCES_A_PART = 32


class Probed(NamedTuple):
    """What was measured.

    Attributes:
        tokens_per_s: Tokens that the engine computed a second.
        bytes_per_token: Of the score table.
        load_s: Seconds that the engine took to start.
        n_tokens: Computed in the round that was measured.
    """

    tokens_per_s: float
    bytes_per_token: float
    load_s: float
    n_tokens: int


@dataclass(frozen=True)
class _Rounds:
    """A source of which each part is one round of the probe."""

    rounds: Sequence[Sequence[Item]]
    inputs: Sequence[InputFile]
    parts: Sequence[Part]
    tokenizer: TokenizerIdentity
    settings: dict[str, Setting]
    text_ids: TextIds | None
    tokenizer_details: dict[str, Setting] | None
    table: pa.Table

    @property
    def n_conversations(self) -> int:
        return sum(map(len, self.rounds))

    def part_bytes(self, part: Part) -> int:
        return len(self.rounds[part.index])

    def read(self, part: Part) -> Iterator[Item]:
        yield from self.rounds[part.index]

    def vocabulary(self) -> pa.Table:
        return self.table


def probe(work: ScoreWork, tell: Tell) -> Probed | None:
    """Score records from the beginnings of some parts, as a run would, into a folder that is deleted.

    Rounds get longer until one takes some seconds, or there are no more records; the last is what counts, so
    that an engine which compiles as it meets the first sequences is not taken for a slow one.

    Args:
        work: The run that is planned.
        tell: Called with lines for the user.

    Returns:
        What was measured; None where nothing of the sample is to be scored.

    Raises:
        EngineError: The engine cannot start, or failed on nothing in particular.
    """
    source = work.source
    rounds = [*_rounds(source_items(work))]
    parts = [Part(i, 0, i, i + 1, 1) for i in range(len(rounds))]
    manifest = msgspec.structs.replace(work.manifest, parts=parts).sealed()
    found: Probed | None = None
    with TemporaryDirectory(prefix="tokscore-probe.") as name:
        sampled = _Rounds(
            rounds,
            source.inputs,
            parts,
            source.tokenizer,
            source.settings,
            source.text_ids,
            source.tokenizer_details,
            source.vocabulary(),
        )
        out = Path(name)
        prepare_output(out, manifest, sampled.vocabulary)
        # What cannot be scored is told with the plan.
        worker = replace(work, source=sampled, out=out, manifest=manifest, on_error=OnError.SKIP).start(tell)
        load_s = 0.0
        try:
            for part in manifest.parts:
                counts = worker.run(part, lambda _n_tokens: None).counts
                load_s = max(load_s, counts.get("load_s", 0.0))
                path = out / manifest.kind.value / part_name(part.index)
                found = _measured(counts, path, load_s) or found
                if counts.get("engine_s", 0.0) >= LEAST_S:
                    break
        finally:
            worker.close()
    return found


def source_items(work: ScoreWork) -> Iterator[Sequence[Item]]:
    """Records from the beginnings of some parts, one of each part in turn, with all branches."""
    source = work.source
    records = (
        [[*branches] for _, branches in groupby(taken, conversation_id)]
        for taken, _ in (
            beginning(source.read(part), SEQUENCES_A_PART) for part in sampled_parts(source.parts)
        )
    )
    return (record for record in chain.from_iterable(zip_longest(*records)) if record is not None)


def _rounds(records: Iterator[Sequence[Item]]) -> Iterator[Sequence[Item]]:
    """The records in rounds of twice as many tokens each; what would make a short one joins the last."""
    taken: list[list[Item]] = []
    n_tokens, n_wanted = math.inf, FIRST_TOKENS // 2
    for record in records:
        if n_tokens >= n_wanted:
            taken.append([])
            n_tokens, n_wanted = 0, n_wanted * 2
        taken[-1] += record
        n_tokens += sum(len(getattr(item, "tokens", ())) for item in record)
    if len(taken) > 1 and n_tokens < n_wanted / 2:
        taken[-2] += taken.pop()
    yield from taken


def _measured(counts: Mapping[str, float], table: Path, load_s: float) -> Probed | None:
    n_computed, elapsed_s = counts.get("n_engine_tokens", 0), counts.get("engine_s", 0.0)
    if not n_computed or elapsed_s <= 0:
        return None
    n_bytes = table.stat().st_size / max(counts.get("n_tokens", 0), 1)
    return Probed(n_computed / elapsed_s, n_bytes, load_s, int(n_computed))
