"""How many tokens a plan holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tokscore.rendering import open_source
from tokscore.rendering.plan_size import plan_size
from tokscore.rendering.run import render_source
from tokscore.rendering.source import ConversationSource

N_RECORDS, N_BRANCHES = 20, 30  # so that a sample ends inside a record


def test_a_sample_tells_the_size_of_a_dataset_of_branches(
    tiny_model: Path, write_jsonl: Callable[..., Path], tmp_path: Path
) -> None:
    branches = [{"prompt_token_ids": [1, 2], "completion_token_ids": [3, 4, i]} for i in range(N_BRANCHES)]
    path = write_jsonl(*[{"branches": branches}] * N_RECORDS)
    conversations = open_source(str(path), str(tiny_model))
    assert isinstance(conversations, ConversationSource)
    render_source(conversations, tmp_path / "out")
    n_sequences = N_RECORDS * N_BRANCHES
    for source in (conversations, open_source(str(tmp_path / "out"), str(tiny_model))):
        exact, sampled = plan_size(source, exact=True), plan_size(source)
        assert exact[:3] == sampled[:3] == (N_RECORDS, n_sequences, n_sequences * 5)
        assert (exact.n_read, exact.is_exact) == (n_sequences, True)
        assert (sampled.n_read, sampled.is_exact) == (5 * N_BRANCHES, False)
