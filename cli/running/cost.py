"""Time and space that a scoring run of a plan takes, for `--dry-run`."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tokscore.cli.printing.console import note
from tokscore.cli.printing.tables import counted
from tokscore.cli.running.plan import PlanCost

if TYPE_CHECKING:
    from tokscore.rendering.plan_size import PlanSize
    from tokscore.scoring import Shard
    from tokscore.scoring.cost.probe import Probed
    from tokscore.scoring.score_work import ScoreWork


def plan_cost(
    work: ScoreWork,
    out: Path | None,
    shard: Shard,
    size: PlanSize,
    tokens_per_s: float | None,
    *,
    probes: bool,
) -> PlanCost:
    """Cost of the parts that are left; tokens are taken to be spread evenly over parts.

    Args:
        work: The run.
        out: Where it goes; None where that is not told.
        shard: Whose parts count.
        size: Of the whole plan.
        tokens_per_s: A rate that the user expects.
        probes: Whether to measure the rate, and the bytes of the table.

    Raises:
        EngineError: It is to be measured, and cannot start.
    """
    from tokscore.dataset.errors import InputError
    from tokscore.dataset.manifest import read_manifest
    from tokscore.dataset.resuming import finished_parts
    from tokscore.scoring.cost.replicas import REPLICAS, seconds_on
    from tokscore.scoring.engines.settings import Sharing
    from tokscore.scoring.estimates import estimate_run
    from tokscore.scoring.sharing.segments import TokenCounts

    manifest = work.manifest
    finished = set[int]()
    shares = work.spec.settings.sharing is Sharing.AUTO
    with suppress(InputError):  # nothing is there yet
        if out is not None and (found := read_manifest(out)).plan_hash == manifest.plan_hash:
            finished = finished_parts(out, manifest)
            # What an engine said that cannot share with this model.
            shares &= not str((found.engine_details or {}).get("sharing", "")).startswith("no")
    top_k = manifest.settings["top_k"]
    assert isinstance(top_k, int)
    probed = _probed(work) if probes else None
    estimate = estimate_run(
        out or Path(),
        finished,
        top_k=top_k,
        n_given=0 if work.listed is None else work.listed.width,
        tokens_per_s=tokens_per_s,
    )
    if probed is not None:
        estimate = estimate._replace(tokens_per_s=probed.tokens_per_s)
        if not estimate.is_measured:
            estimate = estimate._replace(bytes_per_token=probed.bytes_per_token, is_measured=True)
    open_parts = [part for part in manifest.parts if shard.owns(part.index) and part.index not in finished]
    share = len(open_parts) / len(manifest.parts)
    counts = TokenCounts(size.n_logical_tokens, size.n_whole_tokens, size.n_unique_tokens)
    n_once = counts.n_unique if shares and counts.are_worth_sharing else counts.n_whole
    n_tokens, n_to_compute = round(size.n_logical_tokens * share), round(n_once * share)
    elapsed_s = estimate.elapsed_s(n_to_compute)
    load_s = None if probed is None else probed.load_s
    elapsed_s_on = dict[int, float]()
    if elapsed_s is not None:
        sizes = [work.source.part_bytes(part) for part in open_parts]
        total_bytes = sum(sizes)
        part_s = [elapsed_s * n_bytes / max(total_bytes, 1) for n_bytes in sizes]
        elapsed_s_on = {n: seconds_on(n, part_s, load_s or 0.0) for n in REPLICAS}
    return PlanCost(
        len(open_parts),
        n_tokens,
        n_to_compute,
        estimate.size_bytes(n_tokens),
        estimate.is_measured,
        estimate.tokens_per_s,
        elapsed_s,
        load_s,
        elapsed_s_on,
    )


def _probed(work: ScoreWork) -> Probed | None:
    from tokscore.scoring.cost.probe import probe

    found = probe(work, note)
    if found is None:
        note("nothing of the sample is to be scored, so no rate was measured.")
    else:
        note(
            f"probe: {counted(found.n_tokens, 'token')} at {found.tokens_per_s:,.0f} tokens/s; the engine "
            f"took {found.load_s:.1f} s to start."
        )
    return found
