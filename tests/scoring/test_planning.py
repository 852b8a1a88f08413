"""One process and several read the same plan."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tokscore.dataset.choices import OnError
from tokscore.dataset.tokens import FailedConversation, RenderedConversation
from tokscore.rendering import ConversationError, open_source
from tokscore.scoring import parse_selection, plan_engine
from tokscore.scoring.planning import ReadJob, RunPlan, plan_run
from tokscore.scoring.sharing.segments import TokenCounts, token_counts
from tokscore.scoring.spool import Spool

MAX_LENGTH = 150


@pytest.fixture
def make_job(tiny_model: Path, write_jsonl: Callable[..., Path]) -> Callable[[OnError], ReadJob]:
    """Six parts: some lines are broken, some conversations too long, some without an answer."""
    records: list[object] = []
    for i in range(40):
        messages = [{"role": "user", "content": "a" * (190 if i % 5 == 1 else i)}]
        messages += [{"role": "assistant", "content": "y"}] if i % 3 else []
        records.append({"id": f"c{i}", "messages": messages} if i % 7 else "{broken")
    inputs = write_jsonl(*records)

    def job(on_error: OnError) -> ReadJob:
        source = open_source([str(inputs)], str(tiny_model), part_bytes=700)
        spec = plan_engine(str(tiny_model), engine="transformers")
        return ReadJob(source, spec, parse_selection("sampled"), MAX_LENGTH, on_error)

    return job


def test_the_plan_does_not_depend_on_the_number_of_workers(
    make_job: Callable[[OnError], ReadJob], tmp_path: Path
) -> None:
    job = make_job(OnError.SKIP)
    parts = job.source.parts
    found, seen = [], []
    for workers in (1, 2):
        with Spool(tmp_path) as spool:
            plan = plan_run(job, parts, spool, workers=workers, reading=lambda *done: seen.append(done))
            items = [item for part in parts for item in spool.read(part.index)]
            found.append((plan, [str(item) for item in items], seen[-1]))
    assert len(parts) >= 4
    assert found[0] == found[1]
    with Spool(tmp_path) as spool:
        n_answered = [plan_run(job, [part], spool).n_for_engine for part in parts]
    rendered = [item for item in items if isinstance(item, RenderedConversation)]
    answered = [item for item in rendered if (item.tokens.sampled_mask == 1).any()]
    lengths = [len(item.tokens) for item in answered]
    counts = TokenCounts(0, 0, 0)
    for n in n_answered:
        counts = counts.plus(token_counts([item.tokens.token_ids for item in answered[:n]]))
        del answered[:n]
    assert found[0][0] == RunPlan(
        len(rendered), len(lengths), sum(lengths), max(lengths), counts.n_whole, counts.n_unique
    )
    failed = [item.reason for item in items if isinstance(item, FailedConversation)]
    n_long = sum("`max_length` is 150" in reason for reason in failed)
    assert (n_long, len(failed) - n_long) == (sum(i % 5 == 1 and i % 7 > 0 for i in range(40)), 6)
    assert found[0][2][0] == 40


@pytest.mark.parametrize("workers", [1, 2])
def test_the_first_conversation_that_cannot_be_scored_ends_the_run(
    make_job: Callable[[OnError], ReadJob], tmp_path: Path, workers: int
) -> None:
    job = make_job(OnError.FAIL)
    with Spool(tmp_path) as spool, pytest.raises(ConversationError, match=r"convs.jsonl:1: .*JSON"):
        plan_run(job, job.source.parts, spool, workers=workers)
