from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .samples import MAX_LENGTH, VOCAB_SIZE, EngineStarter

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random two-layer Llama whose distributions are far from uniform."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=MAX_LENGTH,
        initializer_range=0.3,
        dtype="float32",
    )
    path = tmp_path_factory.mktemp("models") / "tiny-llama"
    LlamaForCausalLM(config).save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def tiny_gemma2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Gemma 2, which caps its logits softly after the head."""
    import torch
    from transformers import Gemma2Config, Gemma2ForCausalLM

    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=256,
        final_logit_softcapping=5.0,
        initializer_range=0.3,
        dtype="float32",
    )
    path = tmp_path_factory.mktemp("models") / "tiny-gemma2"
    Gemma2ForCausalLM(config).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def start() -> Iterator[EngineStarter]:
    starter = EngineStarter()
    yield starter
    starter.close()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of one of `tiny_models.MODELS`, made when it is first asked for."""
    from .tiny_models import make

    folder = tmp_path_factory.mktemp("tiny")

    def path_of(name: str) -> Path:
        path = folder / name
        if path.exists():
            return path
        if "vllm" not in sys.modules:
            return make(name, folder)
        # vLLM changes some of transformers' classes in its process.
        script = "import sys; from pathlib import Path; from tests.scoring.tiny_models import make"
        script += "; make(sys.argv[1], Path(sys.argv[2]))"
        subprocess.run([sys.executable, "-c", script, name, folder], check=True, cwd=ROOT)
        return path

    return path_of
