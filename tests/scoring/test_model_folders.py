"""Model folders with mutated JSON: a clear refusal or a score, never a traceback or a hang.

TOKSCORE_FUZZ_MODEL_FOLDERS=10000 tries that many instead of a few, TOKSCORE_FUZZ_SEED others.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any

import pytest

from tests.fuzz.fuzzing import HangError, limited
from tests.scoring.samples import random_ids
from tests.scoring.tiny_models import make
from tokscore.dataset.errors import ConversationError, InputError, TokscoreError, UsageError
from tokscore.rendering.attribution.tokenizer import ChatTokenizer
from tokscore.scoring import TokenSequence, load_engine
from tokscore.scoring.engines.row_checks import check_scores

N_FOLDERS = int(os.environ.get("TOKSCORE_FUZZ_MODEL_FOLDERS", "200"))
SEED = int(os.environ.get("TOKSCORE_FUZZ_SEED", "0"))
# Processor seconds for one folder, which takes about a tenth of one.
LIMIT_S = 20.0
KINDS = ("llama", "gemma2", "longrope", "granite")
FILES = ("config.json", "generation_config.json", "tokenizer_config.json")
HOSTILE: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 7, 2**31 - 1, 2**31, 2**63, 10**9, 10**18, -(10**18), 10**400,
    0.0, -0.5, 1e-300, 1e300, float("inf"), float("-inf"), float("nan"), "", "many", "0", "a" * 10_000,
    "\ud800", "\x1b[31m", [], {}, [[]], [None], {"a": 1}, [1, "a"], "float32", "float8_e4m3fn", "llama",
    "LlamaForCausalLM", "../../etc/passwd", "eager", ["full_attention"], {"rope_type": "yarn", "factor": 8},
)  # fmt: skip


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container and key in a JSON value."""
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from places(value[key])


def mutate(folder: Path, chance: random.Random) -> None:
    """Change one to three things in the JSON of a model's folder."""
    for _ in range(chance.randint(1, 3)):
        file = folder / chance.choice(FILES)
        text = file.read_text(errors="replace") if file.exists() else "{}"
        way = chance.random()
        if way < 0.06:
            file.write_bytes(
                text.encode()[: chance.randrange(len(text) + 1)] + b"\xff" * chance.randint(0, 2)
            )
        elif way < 0.08:
            file.write_text("[" * 100_000 + "]" * 100_000)
        elif way < 0.1:
            file.write_text('{"eos_token_id": ' + "[" * 5_000 + "]" * 5_000 + "}")
        else:
            try:
                value = json.loads(text)
            except (ValueError, RecursionError):
                continue
            found = list(places(value))
            new = chance.choice(HOSTILE)
            if not found:
                value = new
            elif way < 0.2:
                container, key = chance.choice(found)
                del container[key]
            elif way < 0.3 and isinstance(value, dict):
                value[chance.choice(EXTRA)] = new
            else:
                container, key = chance.choice(found)
                container[key] = new
            file.write_text(json.dumps(value))


EXTRA = (
    "eos_token_id", "model_max_length", "vocab_size", "num_hidden_layers", "rope_scaling", "rope_parameters",
    "quantization_config", "auto_map", "sliding_window", "layer_types", "is_encoder_decoder", "architectures",
    "max_position_embeddings", "original_max_position_embeddings", "dtype", "torch_dtype", "text_config",
    "added_tokens_decoder", "additional_special_tokens", "chat_template", "head_dim", "attn_implementation",
    "num_experts", "tie_word_embeddings", "attn_logit_softcapping", "final_logit_softcapping", "pad_token_id",
)  # fmt: skip


def load_and_score(folder: Path) -> None:
    ChatTokenizer(str(folder))
    engine = load_engine("transformers", str(folder), top_k=1)
    try:
        sequence = TokenSequence(0, random_ids(0, min(9, engine.max_length)) % engine.vocab_size)
        [(_, scores)] = engine.score([sequence])
        check_scores(scores, sequence.n_rows, 1, "fuzzed", sequence.targets())
    finally:
        engine.close()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_mutated_model_folders_are_scored_or_refused(tmp_path: Path) -> None:
    originals = [make(name, tmp_path / "originals") for name in KINDS]
    outcomes: Counter[str] = Counter()
    failures = []
    for number in range(N_FOLDERS):
        chance = random.Random(SEED * 1_000_003 + number)
        folder = copytree(chance.choice(originals), tmp_path / "fuzzed")
        mutate(folder, chance)
        try:
            with limited(LIMIT_S):
                load_and_score(folder)
            outcomes["scored"] += 1
        except (InputError, UsageError, ConversationError):
            outcomes["refused"] += 1
        except TokscoreError as error:
            outcomes["engine"] += 1
            failures.append(f"{number}: {type(error).__name__}: {str(error)[:300]}")
        except (Exception, HangError) as error:  # noqa: BLE001 (whatever it is)
            outcomes["traceback"] += 1
            failures.append(f"{number}: {type(error).__name__}: {str(error)[:300]}")
        rmtree(folder)
    print(*failures, sep="\n")
    print(f"{N_FOLDERS} folders from seed {SEED}: {dict(outcomes)}")
    assert failures == []
    assert outcomes["scored"] > N_FOLDERS // 10
    assert outcomes["refused"] > N_FOLDERS // 10


@pytest.mark.parametrize(
    ("file", "change", "found"),
    [
        ("config.json", {"vocab_size": 0}, "vocab_size"),
        ("config.json", {"vocab_size": -1}, "vocab_size"),
        ("config.json", {"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000; expected at most"),
        ("config.json", {"rope_parameters": {"rope_type": "yarn", "factor": "x" * 5_000}}, "factor"),
        ("config.json", {"rope_parameters": {"rope_type": "yarn", "factor": float("inf")}}, "factor"),
        ("generation_config.json", {"eos_token_id": 10**18}, "eos_token_id"),
        ("tokenizer_config.json", {"model_max_length": "many"}, "model_max_length is 'many'"),
    ],
)
def test_impossible_values_are_named(tmp_path: Path, file: str, change: dict[str, Any], found: str) -> None:
    folder = make("llama", tmp_path)
    value = json.loads((folder / file).read_text()) if (folder / file).exists() else {}
    (folder / file).write_text(json.dumps(value | change))
    with pytest.raises(InputError, match=found), limited(LIMIT_S):
        load_and_score(folder)


def test_nested_lists_are_refused(tmp_path: Path) -> None:
    folder = make("llama", tmp_path)
    (folder / "generation_config.json").write_text('{"eos_token_id": ' + "[" * 100_000 + "]" * 100_000 + "}")
    with pytest.raises(InputError, match=r"generation_config\.json"):
        load_and_score(folder)
