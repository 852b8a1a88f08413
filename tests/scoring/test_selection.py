from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tokscore.analytics import stats_report as stats
from tokscore.dataset.errors import UsageError
from tokscore.dataset.manifest import read_manifest
from tokscore.dataset.tokens import MessageFacts, RenderedTokens
from tokscore.scoring import parse_selection, parse_shard, plan_engine
from tokscore.scoring.run import score

from .samples import MemorySource, random_ids

TOKENS = RenderedTokens(
    token_ids=np.arange(8, dtype=np.int32),
    message_indices=np.array([-1, 0, 0, 1, 1, 1, 2, -1], np.int32),
    sampled_mask=np.array([0, 0, 0, 0, 1, 1, -1, 0], np.int8),
    is_content=np.array([0, 0, 1, 0, 1, 0, 1, 0], np.bool_),
    source_codes=np.zeros(8, np.int16),
    sources=("content",),
    messages=(MessageFacts("user"), MessageFacts("assistant"), MessageFacts("tool")),
)


@pytest.mark.parametrize(
    ("text", "positions"),
    [
        ("sampled", [4, 5]),
        ("content", [2, 4, 6]),
        ("role=assistant", [3, 4, 5]),
        ("role=user,role=tool", [1, 2, 6]),
        ("sampled,role=tool", [4, 5, 6]),
        ("role=nobody", []),
    ],
)
def test_a_selection_wants_these_positions(text: str, positions: list[int]) -> None:
    wanted = parse_selection(text).wanted(TOKENS)
    assert wanted is not None
    assert wanted.shape == (7,)
    assert (np.flatnonzero(wanted) + 1).tolist() == positions


def test_all_wants_everything_in_whatever_company() -> None:
    assert parse_selection("all").wanted(TOKENS) is None
    assert str(parse_selection("sampled,all")) == "all"
    assert str(parse_selection("sampled,role=user, content")) == "role=user,content,sampled"


@pytest.mark.parametrize("text", ["", "assistant", "role=", "sampled,,content", "SAMPLED"])
def test_other_selections_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected all, sampled, content, role=ROLE"):
        parse_selection(text)


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "1/0", "a/b", "-1/2", "1/2/3"])
def test_other_shards_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected I/N with I from 1 to N"):
        parse_shard(text)


def test_what_is_not_wanted_is_null_and_the_rest_has_the_scores_of_a_full_run(
    tiny_llama: Path, tmp_path: Path
) -> None:
    spec = plan_engine(str(tiny_llama), engine="transformers", top_k=3)
    sampled = np.random.default_rng(0).integers(-1, 2, (3, 30)).astype(np.int8)
    sampled[2] = 0

    def source() -> MemorySource:
        memory = MemorySource([[random_ids(seed, 30).tolist() for seed in range(3)]])
        plain = memory.read

        def read(part: object) -> object:
            for item, mask in zip(plain(part), sampled, strict=True):
                masked = {"sampled_mask": mask, "is_content": item.tokens.is_content}
                yield item._replace(tokens=_replaced(item.tokens, **masked))

        memory.read = read
        return memory

    score(source(), tmp_path / "all", spec)
    summary = score(source(), tmp_path / "sampled", spec, selection=parse_selection("sampled"))
    assert read_manifest(tmp_path / "sampled").settings["score"] == "sampled"
    full, partial = (pl.read_parquet(tmp_path / name / "scores/*.parquet") for name in ("all", "sampled"))
    is_wanted = pl.Series((sampled == 1) & (np.arange(30) > 0)[None, :]).explode()
    assert summary.n_scored == is_wanted.sum()
    # The third has nothing to score, so the engine does not read it.
    assert summary.n_engine_tokens == 60
    for name in ("logprob", "rank", "entropy", "top_ids", "top_logprobs"):
        assert partial[name].is_not_null().to_list() == is_wanted.to_list()
    assert partial["top_ids"].drop_nulls().to_list() == full["top_ids"].filter(is_wanted).to_list()
    assert partial["rank"].drop_nulls().to_list() == full["rank"].filter(is_wanted).to_list()
    np.testing.assert_allclose(partial["logprob"].drop_nulls(), full["logprob"].filter(is_wanted), atol=5e-5)
    report = stats(tmp_path / "sampled")
    assert (report.total.n_scored, report.n_unscored) == (summary.n_scored, 90 - summary.n_scored)


def _replaced(tokens: RenderedTokens, **columns: object) -> RenderedTokens:
    from dataclasses import replace

    return replace(tokens, **columns)
