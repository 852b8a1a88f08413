"""Tokens to log-probabilities.

In: rendered tokens and a model. Out: a row of scores for every token, written as a dataset.
Must not know: where ids came from, or what is computed from the rows.

`score` makes a score dataset of conversations or tokens, `load_scores` a frame of it. Nothing here imports
torch, transformers or vLLM before an engine starts.
"""

from tokscore.scoring.engines.contract import ENGINES, Engine, SequenceScores, TokenSequence
from tokscore.scoring.engines.spec import EngineOptions, EngineSpec, load_engine, plan_engine
from tokscore.scoring.run import ScoreSummary
from tokscore.scoring.score import load_scores, score
from tokscore.scoring.selection import Selection, parse_selection
from tokscore.scoring.shards import Shard, parse_shard

__all__ = [
    "ENGINES",
    "Engine",
    "EngineOptions",
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
