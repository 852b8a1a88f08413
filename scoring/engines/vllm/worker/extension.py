"""What tokscore mixes into vLLM's worker class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tokscore.scoring.engines.vllm.worker.attention_heads import check_heads
from tokscore.scoring.engines.vllm.worker.fused_check import check_fused_pass
from tokscore.scoring.engines.vllm.worker.prompts import PromptScorer, WorkerSettings
from tokscore.scoring.engines.vllm.worker.runners import install

# Objects of vLLM, which has no types for us.
Vllm = Any


class ScoringExtension:
    """Mixed into vLLM's worker class; its methods are called on every worker."""

    model_runner: Vllm
    tokscore_scorer: PromptScorer

    def tokscore_check_heads(self) -> None:
        """Refuse layers that vLLM's Transformers backend would misread."""
        check_heads()

    def tokscore_install(
        self, settings: Sequence[Any]
    ) -> dict[str, str]:  # Any: the fields of WorkerSettings
        """Take over the prompt rows of marked requests.

        Args:
            settings: The fields of `WorkerSettings`.

        Returns:
            What is in use: `runner` (V1 or V2) and `head_dtype`.

        Raises:
            RuntimeError: This vLLM has neither of the two runners this was written for, or the fused pass
                makes other numbers here than it should.
            ValueError: The head cannot be run in float32.
        """
        runner = self.model_runner
        given = WorkerSettings(*settings)
        scorer = self.tokscore_scorer = PromptScorer(runner, given)
        check_fused_pass(
            scorer.device,
            getattr(torch, scorer.head_dtype),
            runner.model_config.get_vocab_size(),
            given.top_k,
            given.temperature,
        )
        return {"runner": install(runner, scorer), "head_dtype": scorer.head_dtype}

    def tokscore_n_computed(self) -> int:
        """Prompt tokens of marked requests that the model has computed here."""
        scorer: PromptScorer = self.tokscore_scorer
        return scorer.n_computed
