"""Tokens to log-probabilities.

Nothing here imports torch, transformers or vLLM before an engine starts.
"""

from tokscore.scoring.engine import ENGINES, Engine, SequenceScores, TokenSequence
from tokscore.scoring.load import EngineSpec, load_engine, plan_engine
from tokscore.scoring.run import ScoreSummary, score

__all__ = [
    "ENGINES",
    "Engine",
    "EngineSpec",
    "ScoreSummary",
    "SequenceScores",
    "TokenSequence",
    "load_engine",
    "plan_engine",
    "score",
]
