"""Tokens to log-probabilities.

In: rendered tokens and a model. Out: a row of scores for every token, written as a dataset.
Must not know: where ids came from, or what is computed from the rows.

`score` makes a score dataset of conversations or tokens, `load_scores` a frame of it. Nothing here imports
torch, transformers or vLLM before an engine starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokscore.dataset.interactive.lazy_names import lazy_names

if TYPE_CHECKING:
    from tokscore.scoring.engines.contract import Engine, SequenceScores, TokenSequence
    from tokscore.scoring.engines.registry import ENGINES, EngineRow
    from tokscore.scoring.engines.settings import EngineSettings
    from tokscore.scoring.engines.spec import EngineSpec, load_engine, plan_engine
    from tokscore.scoring.run import ScoreSummary
    from tokscore.scoring.scores import load_scores, score
    from tokscore.scoring.selection import Selection, parse_selection
    from tokscore.scoring.shards import Shard, parse_shard

# Loaded when first asked for: they import numpy and pyarrow, which `tokscore --help` does not need.
_LAZY = {
    "ENGINES": "tokscore.scoring.engines.registry",
    "Engine": "tokscore.scoring.engines.contract",
    "EngineRow": "tokscore.scoring.engines.registry",
    "EngineSettings": "tokscore.scoring.engines.settings",
    "EngineSpec": "tokscore.scoring.engines.spec",
    "ScoreSummary": "tokscore.scoring.run",
    "Selection": "tokscore.scoring.selection",
    "SequenceScores": "tokscore.scoring.engines.contract",
    "Shard": "tokscore.scoring.shards",
    "TokenSequence": "tokscore.scoring.engines.contract",
    "load_engine": "tokscore.scoring.engines.spec",
    "load_scores": "tokscore.scoring.scores",
    "parse_selection": "tokscore.scoring.selection",
    "parse_shard": "tokscore.scoring.shards",
    "plan_engine": "tokscore.scoring.engines.spec",
    "score": "tokscore.scoring.scores",
}

__all__ = [
    "ENGINES",
    "Engine",
    "EngineRow",
    "EngineSettings",
    "EngineSpec",
    "ScoreSummary",
    "Selection",
    "SequenceScores",
    "Shard",
    "TokenSequence",
    "load_engine",
    "load_scores",
    "parse_selection",
    "parse_shard",
    "plan_engine",
    "score",
]


__getattr__, __dir__ = lazy_names(__name__, _LAZY, __all__)
