from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest

from tests.scoring.samples import MAX_LENGTH, VOCAB_SIZE
from tests.scoring.tiny_models import BASE, save
from tokscore.dataset.errors import EngineError, InputError, UsageError
from tokscore.scoring import EngineSettings, plan_engine
from tokscore.scoring.engines import registry
from tokscore.scoring.engines.checkpoint.positions import max_length_of
from tokscore.scoring.engines.model import find_model


def test_importing_the_room_loads_no_engine() -> None:
    code = (
        "import sys, tokscore.scoring\n"
        "print({'torch', 'transformers', 'vllm', 'huggingface_hub'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_a_plan_knows_the_model_without_starting_it(tiny_llama: Path) -> None:
    spec = plan_engine(str(tiny_llama), engine="transformers")
    assert spec.model.max_length == MAX_LENGTH
    assert spec.identity.name == "tiny-llama"
    assert spec.identity.vocab_size == VOCAB_SIZE
    assert spec.identity.dtype == "float32"
    assert spec.identity.engine == "transformers"
    assert spec.identity.engine_version.startswith("transformers 5.")


def test_the_hash_covers_configuration_and_weights(tiny_llama: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((tiny_llama / name).read_bytes())
    before = find_model(str(tmp_path)).sha256()
    assert before == find_model(str(tiny_llama)).sha256()
    with (tmp_path / "config.json").open("a") as config:
        config.write("\n")
    assert find_model(str(tmp_path)).sha256() != before


def test_large_weights_are_told_apart_by_blocks_of_them(
    tmp_path: Path, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokscore.scoring.engines.model.MAX_HASHED_BYTES", 1000)
    monkeypatch.setattr("tokscore.scoring.engines.model.BLOCK_EVERY_BYTES", 2000)
    monkeypatch.setattr("tokscore.scoring.engines.model.BLOCK_BYTES", 100)
    (tmp_path / "config.json").write_bytes((tiny_llama / "config.json").read_bytes())
    weights = bytearray((tiny_llama / "model.safetensors").read_bytes())

    def hash_of(content: bytes) -> str:
        (tmp_path / "model.safetensors").write_bytes(content)
        return find_model(str(tmp_path)).sha256()

    hashes = [hash_of(weights), hash_of(weights[:-1])]
    for place in (0, 4_050, len(weights) - 1):
        changed = weights.copy()
        changed[place] ^= 1
        hashes.append(hash_of(changed))
    assert len(set(hashes)) == len(hashes)
    # Between the blocks nothing is read.
    weights[4_150] ^= 1
    assert hash_of(weights) == hashes[0]


@pytest.mark.parametrize(
    ("stated", "rope", "expected"),
    [
        (256, None, 256),
        (256, {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}, 1_024),
        (320, {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}, 1_024),
        (1_024, {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}, 1_024),
        (256, {"type": "yarn", "factor": 4.0}, 1_024),
        # Whether these state the length before or after scaling is left open.
        (256, {"rope_type": "linear", "factor": 4.0}, 256),
        (256, {"rope_type": "dynamic", "factor": 4.0}, 256),
    ],
)
def test_the_maximum_length_is_what_yarn_reaches_or_the_configuration_says(
    stated: int, rope: dict[str, object] | None, expected: int, tiny_llama: Path, tmp_path: Path
) -> None:
    config = json.loads((tiny_llama / "config.json").read_text()) | {"max_position_embeddings": stated}
    config.pop("rope_parameters")
    (tmp_path / "config.json").write_text(json.dumps(config | {"rope_theta": 1e4, "rope_scaling": rope}))
    assert find_model(str(tmp_path)).max_length == expected


def test_layers_without_yarn_end_where_the_configuration_says() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
    kinds = {"full_attention": yarn, "sliding_attention": {"rope_type": "default"}}
    config = SimpleNamespace(max_position_embeddings=256, rope_parameters=kinds)
    assert max_length_of(config) == 256
    config.rope_parameters = {"full_attention": yarn}
    assert max_length_of(config) == 1_024


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all", "a/b/c"])
def test_an_unknown_directory_is_bad_input(name: str) -> None:
    with pytest.raises(InputError, match=f"^{name} has no config.json; expected a model directory or hub id"):
        plan_engine(name, engine="transformers")


def test_a_directory_without_configuration_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no config\.json; expected a model directory or hub id"):
        plan_engine(str(tmp_path), engine="transformers")


def test_an_unreachable_hub_id_is_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object, **__: object) -> str:
        raise huggingface_hub.errors.OfflineModeIsEnabled("the hub cannot be reached")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(InputError, match=r"owner/name has no config\.json.*\n.*the hub cannot be reached"):
        plan_engine("owner/name", engine="transformers")


def test_a_hub_id_keeps_its_name_and_commit(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = tmp_path / "0123abc"
    snapshot.symlink_to(tiny_llama)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(snapshot))
    spec = plan_engine("owner/name", engine="transformers")
    assert (spec.identity.name, spec.identity.revision) == ("owner/name", "0123abc")


def test_broken_configuration_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama",')
    with pytest.raises(InputError, match=r"config\.json cannot be read"):
        plan_engine(str(tmp_path), engine="transformers")


def test_an_unknown_architecture_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "no-such-model"}))
    with pytest.raises(InputError, match=r"config\.json cannot be used.*no-such-model"):
        plan_engine(str(tmp_path), engine="transformers")


def test_a_directory_without_weights_is_bad_input(tiny_llama: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((tiny_llama / "config.json").read_bytes())
    with pytest.raises(InputError, match="has no weights"):
        plan_engine(str(tmp_path), engine="transformers")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "llamacpp"}, "expected auto, vllm, transformers"),
        ({"dtype": "int8"}, "expected auto, float32, bfloat16, float16"),
        ({"top_k": -1}, "expected at least 0"),
        ({"top_k": 129}, "expected 0 to 128"),
        ({"temperature": 0.0}, "expected a number above 0"),
        ({"temperature": float("nan")}, "expected a number above 0"),
        (
            {"engine": "vllm", "temperature": 0.7, "engine_path": "flat"},
            "ignores the temperature",
        ),
    ],
)
def test_wrong_options_are_wrong_usage(options: dict[str, object], message: str, tiny_llama: Path) -> None:
    with pytest.raises(UsageError, match=message):
        plan_engine(str(tiny_llama), **({"engine": "transformers"} | options))


@pytest.mark.parametrize(("engine", "extra"), [("transformers", "cpu"), ("vllm", "vllm")])
def test_a_missing_package_is_named_with_its_extra(
    engine: str, extra: str, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "find_spec", lambda _: None)
    with pytest.raises(EngineError, match=rf"pip install 'tokscore\[{extra}\]'"):
        plan_engine(str(tiny_llama), engine=engine)


def test_auto_is_transformers_where_vllm_is_absent(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = registry.find_spec
    monkeypatch.setattr(registry, "find_spec", lambda name: None if name == "vllm" else find_spec(name))
    assert plan_engine(str(tiny_llama)).identity.engine == "transformers"


@pytest.mark.vllm
def test_auto_is_vllm_where_it_can_run(tiny_llama: Path) -> None:
    pytest.importorskip("vllm")
    assert plan_engine(str(tiny_llama)).identity.engine == "vllm"
    assert plan_engine(str(tiny_llama), temperature=0.5).identity.engine == "vllm"


def test_top_k_that_nobody_gave_is_all_of_a_small_vocabulary(tmp_path: Path) -> None:
    save(tmp_path, "LlamaForCausalLM", "LlamaConfig", **{**BASE, "vocab_size": 7})
    assert plan_engine(str(tmp_path), engine="transformers").settings.top_k == 7
    assert plan_engine(str(tmp_path), EngineSettings(engine="transformers")).settings.top_k == 7
    assert plan_engine(str(tmp_path), engine="transformers", top_k=6).settings.top_k == 6
    with pytest.raises(UsageError, match="`top_k` is 20; expected 0 to 7, the vocabulary size"):
        plan_engine(str(tmp_path), engine="transformers", top_k=20)
