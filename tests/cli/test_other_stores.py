"""Google Cloud Storage and Azure Blob Storage take datasets as S3 does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.conftest import unavailable
from tests.dataset.claims.two_writers import check_one_wins
from tests.other_stores import AzureStore, GoogleStore, OtherStore, away, has_azurite
from tokscore.cli.app import app
from tokscore.dataset.claims.claim import read_claims
from tokscore.dataset.claims.claiming import Claims
from tokscore.dataset.claims.files import ClaimFiles
from tokscore.dataset.files import location

N_PARTS = 4


@pytest.fixture(scope="module", params=["gs", "az"])
def started(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OtherStore]:
    if request.param == "az" and not has_azurite():
        unavailable("azurite-blob is not installed; `npm install --global azurite` does it")
    server = GoogleStore() if request.param == "gs" else AzureStore(tmp_path_factory.mktemp("azurite"))
    yield server
    server.stop()


@pytest.fixture
def bucket(started: OtherStore, monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of an empty folder of the store."""
    for name, value in started.environment.items():
        monkeypatch.setenv(name, value)
    return f"{started.url}/{uuid.uuid4().hex}"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_of_many_that_make_a_file_one_does(bucket: str) -> None:
    files = ClaimFiles(location(f"{bucket}/claims"))
    assert files.names() == []
    for name in "abc":
        with ThreadPoolExecutor(8) as threads:
            made = list(threads.map(lambda i, name=name: files.create(name, str(i).encode()), range(8)))
        assert sum(made) == 1
        assert files.read(name) == str(made.index(True)).encode()
    files.replace("a", b"another")
    files.delete("b")
    assert (files.read("a"), files.read("b"), sorted(files.names())) == (b"another", None, ["a", "c"])


def test_a_part_is_claimed_once(bucket: str) -> None:
    root = location(bucket)
    first, second = Claims(root, "tokens", "first"), Claims(root, "tokens", "second")
    assert first.take(3)
    assert not second.take(3)
    assert first.beat(17)
    assert read_claims(root).claims[3].n_tokens == 17
    first.release(20)
    assert second.take(3)


@pytest.mark.slow
def test_of_two_writers_of_a_part_one_wins(bucket: str) -> None:
    root = location(bucket)
    check_one_wins(root, N_PARTS)


@pytest.mark.slow
def test_render_and_logprobs_go_through_a_bucket(
    started: OtherStore, bucket: str, conversation: dict[str, object], tiny_model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "convs.jsonl"
    path.write_text(json.dumps(conversation) + "\n")
    location(f"{bucket}/in/convs.jsonl").write_bytes(path.read_bytes())
    assert run("render", path, "-m", tiny_model, "-o", tmp_path / "tokens").exit_code == 0
    with away(started, 1.0):
        done = run("render", f"{bucket}/in/*.jsonl", "-m", tiny_model, "-o", f"{bucket}/tokens")
    assert done.exit_code == 0, (done.output, done.exception)
    for here in sorted((tmp_path / "tokens").rglob("*")):
        if here.is_file():
            there = location(f"{bucket}/tokens") / here.relative_to(tmp_path / "tokens").as_posix()
            assert there.read_bytes() == here.read_bytes(), here
    again = run("render", f"{bucket}/in/*.jsonl", "-m", tiny_model, "-o", f"{bucket}/tokens")
    assert "was complete already" in again.output
    engine = ["-m", tiny_model, "--engine", "transformers", "--dtype", "float32", "--top-k", "3"]
    scored = [
        run("logprobs", f"{root}/tokens", *engine, "-o", f"{root}/scores", "--format", "json")
        for root in (tmp_path, bucket)
    ]
    assert [each.exit_code for each in scored] == [0, 0], scored[1].exception
    assert scored[0].stdout == scored[1].stdout
    for command in ("stats", "verify", "status"):
        printed = run(command, f"{bucket}/scores", "--format", "json")
        assert printed.exit_code == 0, (printed.output, printed.exception)
    damaged = location(f"{bucket}/scores/spans/part-00000.parquet")
    damaged.write_bytes(b"PAR1")
    assert run("verify", f"{bucket}/scores", "--repair").exit_code == 1
    assert run("logprobs", f"{bucket}/tokens", *engine, "-o", f"{bucket}/scores").exit_code == 0
    assert run("verify", f"{bucket}/scores").exit_code == 0


@pytest.mark.parametrize(
    "name",
    # Its library tries again by itself, for half a minute.
    ["hf://datasets/me/set/*.jsonl", pytest.param("gs://bucket/a.jsonl", marks=pytest.mark.nightly)],
)
def test_a_store_that_cannot_be_reached_is_named_in_one_line(
    tiny_model: Path, tmp_path: Path, name: str
) -> None:
    nowhere = "http://127.0.0.1:9"
    finished = subprocess.run(
        [
            *(sys.executable, "-m", "tokscore.cli.main", "render", name),
            *("-m", str(tiny_model), "-o", str(tmp_path / "out")),
        ],
        env={
            **os.environ,
            "HF_HUB_OFFLINE": "0",
            "HF_ENDPOINT": nowhere,
            "STORAGE_EMULATOR_HOST": nowhere,
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
            "TOKSCORE_STORE_PATIENCE_S": "0",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert finished.returncode == 1
    assert finished.stderr.startswith(f"error: {name}")
    assert "the store cannot be reached" in finished.stderr
    assert len(finished.stderr.splitlines()) == 1
