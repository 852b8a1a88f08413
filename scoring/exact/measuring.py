"""Both models started as their plans say, for one pass over all sequences."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tokscore.dataset.errors import UsageError
from tokscore.scoring.engines.child import Child
from tokscore.scoring.engines.contract import TokenSequence
from tokscore.scoring.exact.divergences import ExactTokens
from tokscore.scoring.exact.one_after_other import Keeping, OneAfterOther
from tokscore.scoring.exact.pair import ModelPair

if TYPE_CHECKING:
    from tokscore.scoring.engines.spec import EngineSpec

Measure = Callable[[Iterable[TokenSequence]], Iterator[tuple[int, ExactTokens]]]


@contextmanager
def measuring(
    teacher: EngineSpec,
    student: EngineSpec,
    ahead: Iterable[TokenSequence] = (),
    *,
    alphas: Sequence[float] = (0.5,),
    folder: Path | None = None,
    keeping: Keeping = lambda _done, _total: None,
) -> Iterator[Measure]:
    """Key and values of every sequence that the result is called with.

    Models of transformers run side by side, in a process of their own where vLLM has changed transformers in
    this one. Models of vLLM run one after the other.

    Args:
        teacher: Plan of an engine.
        student: Of the same engine.
        ahead: All sequences that will be compared, in that order; vLLM's models need them.
        alphas: Weights of the teacher in the mixtures.
        folder: On the disk that has room for hidden states; the system's temporary one by default.
        keeping: Called as the first of vLLM's models runs.

    Raises:
        UsageError: The engines differ.
        TokscoreError: As `ModelPair` and `OneAfterOther`.
    """
    names = {spec.identity.engine for spec in (teacher, student)}
    if len(names) > 1:
        raise UsageError(f"the engines are {' and '.join(sorted(names))}; expected one for both.")
    pair: ModelPair | Child[ExactTokens] | OneAfterOther
    if names == {"vllm"}:
        folder = folder or Path(tempfile.gettempdir())
        pair = OneAfterOther(teacher, student, ahead, folder, alphas=alphas, keeping=keeping)
    elif "vllm" in sys.modules:
        pair = Child("tokscore.scoring.exact.pair:ModelPair", "measure", teacher, student, alphas=alphas)
    else:
        pair = ModelPair(teacher, student, alphas=alphas)
    try:
        yield pair.call if isinstance(pair, Child) else pair.measure
    finally:
        pair.close()
