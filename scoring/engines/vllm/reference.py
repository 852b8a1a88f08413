"""vLLM running transformers' own code of a model, held against transformers.

vLLM has code of its own for most architectures. The others run through its Transformers backend, which takes
a model's body and puts its own head on it: scales, caps and biases that the model applies there are lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from tokscore.dataset.errors import EngineError
from tokscore.scoring.engines.child import Child
from tokscore.scoring.engines.contract import SequenceScores, TokenSequence
from tokscore.scoring.engines.registry import ENGINES
from tokscore.scoring.engines.settings import EngineSettings

if TYPE_CHECKING:
    from tokscore.scoring.engines.spec import EngineSpec

SHORT_TOKENS = 64
# Largest and mean difference from float32 by rounding, in nats at temperature 1, as selfcheck measured it.
LIMITS = {"float32": (1e-3, 1e-4), "float16": (0.25, 0.0125), "bfloat16": (2.0, 0.1)}

Score = Callable[[Iterable[TokenSequence]], Iterator[tuple[int, SequenceScores]]]


def uses_transformers(model_config: Any) -> bool:  # Any: vLLM's `ModelConfig`
    """Whether vLLM runs the model through its Transformers backend."""
    asked = getattr(model_config, "using_transformers_backend", None)
    return bool(asked()) if callable(asked) else False


def difference_from_transformers(spec: EngineSpec, score: Score, longest: int) -> float:
    """The largest difference of logprobs, in nats, for one short sequence.

    The reference runs in float32 on the CPU, in a process of its own.

    Args:
        spec: What vLLM was started for.
        score: Of vLLM's engine.
        longest: Most tokens of a sequence.

    Raises:
        EngineError: Rounding does not explain it, or the reference cannot be run.
    """
    ids = np.random.default_rng(0).integers(0, spec.model.vocab_size, min(SHORT_TOKENS, longest))
    sequence = TokenSequence(0, ids.astype(np.int32))
    if sequence.n_rows == 0:
        return 0.0
    [(_, here)] = score([sequence])
    identity = msgspec.structs.replace(spec.identity, engine="transformers", dtype="float32")
    settings = EngineSettings(engine="transformers", top_k=0, temperature=spec.settings.temperature)
    reference = replace(spec, identity=identity, settings=settings)
    child: Child[SequenceScores] = Child(
        ENGINES["transformers"].target, "score", reference, longest, on_cpu=True
    )
    try:
        [(_, believed)] = child.call([sequence])
    finally:
        child.close()
    one, other = here.logprobs.astype(np.float64), believed.logprobs.astype(np.float64)
    moves = np.abs(np.subtract(one, other, out=np.zeros_like(one), where=one != other))
    sharpness = max(1.0, 1 / spec.settings.temperature)
    max_move, mean_move = (limit * sharpness for limit in LIMITS.get(spec.identity.dtype, LIMITS["bfloat16"]))
    if not (moves.max() <= max_move and moves.mean() <= mean_move):
        raise EngineError(
            f"vLLM runs {spec.identity.name} through its Transformers backend, where logprobs differ from "
            f"transformers' own by up to {moves.max():.3g} nats.\n"
            "Use `engine='transformers'`."
        )
    return float(moves.max())
