from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

if TYPE_CHECKING:
    from tests.store_server import StoreServer

with suppress(ImportError):  # the environment of vLLM goes without it
    from hypothesis import settings

    # The same examples in every run; how long one takes depends on the machine.
    settings.register_profile("tokscore", derandomize=True, deadline=None)
    settings.load_profile("tokscore")

# Where every core has a process of tests, more threads than one wait for each other.
if n_processes := os.environ.get("PYTEST_XDIST_WORKER_COUNT"):
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // int(n_processes))))

# Processes of pytest-xdist have a width; tables are as wide as they need where there is none.
os.environ.pop("COLUMNS", None)

EXAMPLES = Path(__file__).parent.parent / "examples"

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def _required(variable: str, what: str) -> Path:
    """A folder that the test command prepares; missing is a failure in CI and a skip elsewhere."""
    value = os.environ.get(variable)
    if not value or not Path(value).is_dir():
        unavailable(f"{variable} names no folder with {what}; `make test` prepares it")
    return Path(value)


def unavailable(reason: str) -> NoReturn:
    """What a test needs is not here: a failure in CI, where everything is installed, and a skip elsewhere."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def teacher_model() -> Path:
    """The real SmolLM2-135M-Instruct."""
    return _required("TOKSCORE_TEST_MODELS", "the two small models") / "smollm2-135m-instruct"


@pytest.fixture(scope="session")
def student_model() -> Path:
    """The same model with int4 weights."""
    return _required("TOKSCORE_TEST_MODELS", "the two small models") / "smollm2-135m-student"


@pytest.fixture(scope="session")
def assets() -> Path:
    """Real tokenizers and chat templates."""
    folder = _required("TOKSCORE_TEST_ASSETS", "real tokenizers and templates")
    if not (folder / "tokenizers").is_dir():
        unavailable(f"{folder} has no tokenizers: they come by npm, which was not there when it was made")
    return folder


@pytest.fixture(scope="session")
def qwen3(assets: Path) -> Path:
    """The Qwen3 tokenizer."""
    return assets / "tokenizers" / "qwen3"


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random two-layer Llama with a byte-level tokenizer, ChatML and 256 positions."""
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", seed=0)


@pytest.fixture(scope="session")
def other_tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with other weights."""
    return make_tiny_model(tmp_path_factory.mktemp("models") / "other-tiny", seed=1)


def make_tiny_model(directory: Path, *, seed: int, template: str | None = CHATML) -> Path:
    import torch
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM

    directory.mkdir(parents=True, exist_ok=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={character: i for i, character in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|endoftext|>",
        "eos_token": "<|im_end|>",
        "clean_up_tokenization_spaces": False,
    }
    if template is not None:
        config["chat_template"] = template
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=259,
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=256,
            bos_token_id=256,
            eos_token_id=258,
            tie_word_embeddings=False,
            initializer_range=0.4,
        )
    )
    model.save_pretrained(directory)
    return directory


RunTokscore = Callable[..., "subprocess.CompletedProcess[str]"]


def _run_alone(
    *arguments: str | Path, stdin: bytes = b"", cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    finished = subprocess.run(
        [sys.executable, "-m", "tokscore.cli.main", *map(str, arguments)],
        input=stdin,
        capture_output=True,
        cwd=cwd,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        check=False,
    )
    return subprocess.CompletedProcess(
        finished.args, finished.returncode, finished.stdout.decode(), finished.stderr.decode()
    )


@pytest.fixture(scope="session")
def tokscore(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunTokscore]:
    """Run the command line from outside, each time in a process of its own."""
    if find_spec("vllm") is not None:  # it does not start in a fork of a process that has numba
        yield _run_alone
        return
    streams = tmp_path_factory.mktemp("streams")
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    server = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("command_server.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    to_server, from_server = server.stdin, server.stdout

    def run(
        *arguments: str | Path, stdin: bytes = b"", cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        (streams / "stdin").write_bytes(stdin)
        for name in ("stdout", "stderr"):
            (streams / name).write_bytes(b"")
        texts = [str(argument) for argument in arguments]
        request = {
            "arguments": texts,
            "folder": str(cwd or Path.cwd()),
            "environment": {**os.environ, "HF_HUB_OFFLINE": "1"},
            **{name: str(streams / name) for name in ("stdin", "stdout", "stderr")},
        }
        to_server.write(json.dumps(request) + "\n")
        to_server.flush()
        exit_code = int(from_server.readline())
        out, err = ((streams / name).read_bytes().decode() for name in ("stdout", "stderr"))
        return subprocess.CompletedProcess(texts, exit_code, out, err)

    yield run
    to_server.close()
    server.wait()
    from_server.close()


@pytest.fixture(scope="session")
def tiny_scores(tokscore: RunTokscore, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A score dataset of the tiny model."""
    folder = tmp_path_factory.mktemp("scores")
    record = {
        "id": "kettle-limescale",
        "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}],
    }
    (folder / "convs.jsonl").write_text(json.dumps(record) + "\n")
    finished = tokscore(
        "logprobs",
        folder / "convs.jsonl",
        "-m",
        tiny_model,
        "-o",
        folder / "scores",
        "--engine",
        "transformers",
    )
    assert finished.returncode == 0, finished.stderr
    return folder / "scores"


@pytest.fixture
def write_jsonl(tmp_path: Path) -> Callable[..., Path]:
    """Write records (or raw lines) to a file."""

    def write(*records: object, name: str = "convs.jsonl") -> Path:
        path = tmp_path / name
        path.write_text(
            "".join((r if isinstance(r, str) else json.dumps(r, ensure_ascii=False)) + "\n" for r in records)
        )
        return path

    return write


@pytest.fixture
def conversation() -> dict[str, object]:
    return {
        "id": "greeting",
        "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}],
    }


@pytest.fixture(scope="session")
def write_scores() -> Callable[..., Path]:
    """Write a score dataset with a vocabulary of hostile texts, as `score_samples.write_scores`."""
    from .score_samples import write_scores

    return write_scores


@pytest.fixture(scope="session")
def started_store() -> Iterator[StoreServer]:
    """An S3 server, which is not yet where the environment points to."""
    pytest.importorskip("moto")
    from tests.store_server import StoreServer

    server = StoreServer()
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def _temporary_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take back what --scratch changes in the process of a test."""
    monkeypatch.setattr(tempfile, "tempdir", tempfile.gettempdir())
    monkeypatch.setenv("TMPDIR", tempfile.gettempdir())


@pytest.fixture
def store(started_store: StoreServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[StoreServer]:
    """The S3 server of the environment; `s3://bucket` is empty."""
    from tests.store_server import KEY, SECRET

    monkeypatch.setenv("AWS_ENDPOINT_URL", started_store.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    started_store.reset()
    yield started_store
    started_store.reset()
