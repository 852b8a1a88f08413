"""Commands on an object store over HTTP print and write what they do on files of this machine."""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.score_samples import write_scores
from tests.store_server import KEY, SECRET, StoreServer
from tokscore.cli.app import app
from tokscore.dataset.claims.commit import STORE_LEASE_S
from tokscore.dataset.errors import UsageError
from tokscore.dataset.files import location

SAMPLES = [(f"c{i}", (("user", (1, 2, 3)), ("assistant", tuple(range(3, 33))))) for i in range(40)]


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def upload(folder: Path, name: str) -> str:
    """A folder in the bucket."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            location(f"s3://bucket/{name}/{path.relative_to(folder).as_posix()}").write_bytes(
                path.read_bytes()
            )
    return f"s3://bucket/{name}"


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def scores(tmp_path: Path) -> tuple[Path, Path]:
    return (
        write_scores(tmp_path / "teacher", SAMPLES),
        write_scores(tmp_path / "student", SAMPLES, noise=0.5, model="student"),
    )


@pytest.mark.parametrize("name", ["s3://bucket/in/*.jsonl.gz", "s3://bucket/in/convs.jsonl.gz"])
def test_render_reads_what_lies_in_a_bucket(
    store: StoreServer, conversation: dict[str, object], tiny_model: Path, tmp_path: Path, name: str
) -> None:
    path = tmp_path / "convs.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(conversation).encode() + b"\n"))
    location("s3://bucket/in/convs.jsonl.gz").write_bytes(path.read_bytes())
    outs = [tmp_path / "here" / "tokens", tmp_path / "there" / "tokens"]
    for source, out in zip([path, name], outs, strict=True):
        assert run("render", source, "-m", tiny_model, "-o", out).exit_code == 0
    assert content(outs[0]) == content(outs[1])


@pytest.mark.parametrize(
    "command",
    [
        ["stats", "{teacher}", "--format", "json"],
        ["stats", "{teacher}", "--by", "conversation_id", "--format", "csv"],
        ["diff", "{teacher}", "{student}", "--format", "json"],
        ["show", "{teacher}", "c3", "--against", "{student}", "--format", "json"],
    ],
    ids=lambda command: command[0],
)
def test_commands_print_the_same_of_a_bucket(
    store: StoreServer, scores: tuple[Path, Path], command: list[str]
) -> None:
    here = dict(zip(("teacher", "student"), map(str, scores), strict=True))
    there = {name: upload(Path(path), name) for name, path in here.items()}
    printed = [run(*(each.format(**places) for each in command)) for places in (here, there)]
    assert [each.exit_code for each in printed] == [0, 0], printed[1].output
    assert printed[0].stdout == printed[1].stdout


def test_of_a_bucket_only_the_columns_that_are_used_are_fetched(store: StoreServer, tmp_path: Path) -> None:
    many = [(f"c{i}", (("user", (1, 2, 3)), ("assistant", (*range(3, 33),) * 16))) for i in range(300)]
    folder = write_scores(tmp_path / "scores", many, top_k=20)
    size = (folder / "scores" / "part-00000.parquet").stat().st_size
    url = upload(folder, "scores")
    store.requests.clear()
    assert run("stats", url).exit_code == 0
    asked = [each for each in store.requests if each.path.endswith("scores/part-00000.parquet")]
    assert 0 < sum(each.n_bytes for each in asked if each.method == "GET") < size / 3
    assert all(each.range for each in asked if each.method == "GET")


@pytest.mark.slow
def test_verify_reads_a_bucket(
    store: StoreServer, conversation: dict[str, object], tiny_model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "convs.jsonl"
    path.write_text(json.dumps(conversation) + "\n")
    assert run("render", path, "-m", tiny_model, "-o", tmp_path / "tokens").exit_code == 0
    url = upload(tmp_path / "tokens", "tokens")
    assert run("verify", url).exit_code == 0
    location(f"{url}/spans/part-00000.parquet").write_bytes(b"PAR1")
    found = run("verify", url, "--format", "json")
    assert found.exit_code == 1
    assert (
        "spans/part-00000.parquet is no whole Parquet file" in json.loads(found.stdout)["faults"][0]["reason"]
    )
    assert run("verify", url, "--repair").exit_code == 1
    assert "tokens/set-aside/1/tokens/part-00000.parquet" in store.names()
    assert "tokens/tokens/part-00000.parquet" not in store.names()
    assert run("render", path, "-m", tiny_model, "-o", url).exit_code == 0
    assert run("verify", url).exit_code == 0


def test_select_finds_files_beside_a_dataset_in_a_bucket(
    store: StoreServer, conversation: dict[str, object], tiny_model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "convs.jsonl"
    path.write_text(json.dumps(conversation) + "\n")
    assert run("render", path, "-m", tiny_model, "-o", tmp_path / "tokens").exit_code == 0
    location("s3://bucket/convs.jsonl").write_bytes(path.read_bytes())
    url = upload(tmp_path / "tokens", "tokens")
    done = run("select", url, "--where", "n_tokens > 0", "-o", "s3://bucket/kept.jsonl.gz")
    assert done.exit_code == 0, done.output
    assert gzip.decompress(location("s3://bucket/kept.jsonl.gz").read_bytes()) == path.read_bytes()


def test_credentials_stand_in_no_error_and_no_manifest(
    store: StoreServer, conversation: dict[str, object], tiny_model: Path, tmp_path: Path
) -> None:
    location("s3://bucket/convs.jsonl").write_bytes(json.dumps(conversation).encode())
    out = tmp_path / "tokens"
    done = run("render", "s3://bucket/convs.jsonl", "-m", tiny_model, "-o", out)
    assert done.exit_code == 0
    store.fails = lambda _method, _path: True
    refused = run("render", "s3://bucket/other.jsonl", "-m", tiny_model, "-o", tmp_path / "other")
    assert "the store refuses it" in str(refused.exception)
    for text in (done.output, str(refused.exception), *map(repr, content(out).values())):
        assert KEY not in text
        assert SECRET not in text


def test_a_password_in_a_url_is_refused_and_not_repeated(tiny_model: Path, tmp_path: Path) -> None:
    done = run("render", "s3://me:hunter22@bucket/a.jsonl", "-m", tiny_model, "-o", tmp_path / "out")
    assert isinstance(done.exception, UsageError)
    assert "expected them in the environment" in str(done.exception)
    assert "hunter22" not in str(done.exception)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("s4://bucket/a.jsonl", "s4:// is no store that fsspec knows"),
        ("s3://bucket/none.jsonl", "s3://bucket/none.jsonl does not exist"),
        ("s3://bucket/none-*.jsonl", "s3://bucket/none-*.jsonl matches no file"),
        ("s3://nowhere/none.jsonl", "s3://nowhere/none.jsonl does not exist"),
    ],
)
def test_what_is_not_there_is_named(
    store: StoreServer, tiny_model: Path, tmp_path: Path, name: str, message: str
) -> None:
    done = run("render", name, "-m", tiny_model, "-o", tmp_path / "out")
    assert message in str(done.exception)


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    """A web server of the test's folder."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_arguments: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_the_signature_of_a_web_address_stands_nowhere(
    web: str,
    write_jsonl: Callable[..., Path],
    conversation: dict[str, object],
    tiny_model: Path,
    tmp_path: Path,
) -> None:
    write_jsonl(conversation)
    out = tmp_path / "tokens"
    done = run("render", f"{web}/convs.jsonl?X-Amz-Signature=abc123def", "-m", tiny_model, "-o", out)
    assert done.exit_code == 0, done.output
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["inputs"][0]["name"] == "convs.jsonl"
    gone = run(
        "render", f"{web}/none.jsonl?X-Amz-Signature=abc123def", "-m", tiny_model, "-o", tmp_path / "o"
    )
    assert f"{web}/none.jsonl does not exist" in str(gone.exception)
    for text in (done.output, str(gone.exception), *map(repr, content(out).values())):
        assert "abc123def" not in text


@pytest.mark.slow
def test_an_input_is_read_on_after_the_network_was_away(
    store: StoreServer, conversation: dict[str, object], tiny_model: Path, tmp_path: Path
) -> None:
    location("s3://bucket/convs.jsonl").write_bytes(json.dumps(conversation).encode())
    with store.away(2.0):
        done = run("render", "s3://bucket/convs.jsonl", "-m", tiny_model, "-o", tmp_path / "tokens")
    assert done.exit_code == 0, done.exception


def rendered(tmp_path: Path, tiny_model: Path, conversation: dict[str, object], n: int = 1) -> Path:
    path = tmp_path / "convs.jsonl"
    path.write_text("".join(json.dumps({**conversation, "id": f"c{i}"}) + "\n" for i in range(n)))
    assert run("render", path, "-m", tiny_model, "-o", tmp_path / "tokens").exit_code == 0
    return path


def test_a_dataset_in_a_bucket_has_the_bytes_of_one_here(
    store: StoreServer, conversation: dict[str, object], tiny_model: Path, tmp_path: Path
) -> None:
    path = rendered(tmp_path, tiny_model, conversation)
    done = run("render", path, "-m", tiny_model, "-o", "s3://bucket/tokens", "--scratch", tmp_path)
    assert done.exit_code == 0, done.output
    assert "wrote s3://bucket/tokens" in done.output
    here = content(tmp_path / "tokens")
    assert {key.removeprefix("tokens/") for key in store.names()} == {*here}
    for name, expected in here.items():
        assert location(f"s3://bucket/tokens/{name}").read_bytes() == expected, name
    assert not list(tmp_path.glob(".*.tmp"))
    assert store.unfinished() == 0
    again = run("render", path, "-m", tiny_model, "-o", "s3://bucket/tokens")
    assert "was complete already" in again.output


def test_logprobs_scores_a_bucket_into_a_bucket(
    store: StoreServer, conversation: dict[str, object], tiny_model: Path, tmp_path: Path
) -> None:
    rendered(tmp_path, tiny_model, conversation)
    upload(tmp_path / "tokens", "tokens")
    engine = ["-m", tiny_model, "--engine", "transformers", "--dtype", "float32", "--top-k", "3"]
    here = run("logprobs", tmp_path / "tokens", *engine, "-o", tmp_path / "scores", "--format", "json")
    there = run("logprobs", "s3://bucket/tokens", *engine, "-o", "s3://bucket/scores", "--format", "json")
    assert there.exit_code == 0, there.output
    assert there.stdout == here.stdout
    assert run("verify", "s3://bucket/scores").exit_code == 0


@pytest.mark.parametrize("table", ["spans", "tokens"])
@pytest.mark.slow
def test_an_upload_that_fails_in_the_middle_leaves_no_part(
    store: StoreServer, conversation: dict[str, object], tiny_model: Path, tmp_path: Path, table: str
) -> None:
    path = rendered(tmp_path, tiny_model, conversation)
    store.fails = lambda method, name: (
        method == "PUT" and f"/{table}/part-00000" in name and "partNumber" in name
    )
    failed = run("render", path, "-m", tiny_model, "-o", "s3://bucket/tokens", "--scratch", tmp_path)
    assert isinstance(failed.exception, OSError)
    assert not [key for key in store.names() if "/part-" in key]
    assert not list(tmp_path.glob(".*.tmp"))
    store.fails = lambda _method, _name: False
    assert store.unfinished() == 0
    assert run("render", path, "-m", tiny_model, "-o", "s3://bucket/tokens").exit_code == 0
    assert run("verify", "s3://bucket/tokens").exit_code == 0


@pytest.mark.slow
def test_a_part_is_there_when_its_last_upload_is_complete(
    store: StoreServer, conversation: dict[str, object], tiny_model: Path, tmp_path: Path
) -> None:
    path = rendered(tmp_path, tiny_model, conversation)
    store.fails = lambda method, name: (
        method == "POST" and "/tokens/part-00000" in name and "uploadId" in name
    )
    assert run("render", path, "-m", tiny_model, "-o", "s3://bucket/tokens").exit_code != 0
    store.fails = lambda _method, _name: False
    assert run("stats", "s3://bucket/tokens").exit_code != 0
    again = run("render", path, "-m", tiny_model, "-o", "s3://bucket/tokens")
    assert again.exit_code == 0
    assert "complete already" not in again.output
    assert run("verify", "s3://bucket/tokens").exit_code == 0


@pytest.mark.slow
@pytest.mark.parametrize("away_s", [2.0, 30.0])
def test_a_part_is_written_after_the_network_was_away(
    store: StoreServer, conversation: dict[str, object], tiny_model: Path, tmp_path: Path, away_s: float
) -> None:
    path = rendered(tmp_path, tiny_model, conversation)
    gone: list[object] = []

    def goes(method: str, name: str) -> bool:
        if "partNumber" in name and not gone:
            gone.append(store.away(away_s))
            gone[0].__enter__()  # type: ignore[attr-defined]
        return False

    store.fails = goes
    done = run("render", path, "-m", tiny_model, "-o", "s3://bucket/tokens")
    assert gone
    assert done.exit_code == 0, done.exception
    assert run("verify", "s3://bucket/tokens").exit_code == 0


@pytest.mark.parametrize(
    ("method", "call"),
    [pytest.param("PUT", "partNumber", marks=pytest.mark.slow), ("POST", "uploadId")],
)
@pytest.mark.slow
def test_a_run_that_is_killed_in_the_middle_of_an_upload_goes_on(
    store: StoreServer,
    conversation: dict[str, object],
    tiny_model: Path,
    tmp_path: Path,
    method: str,
    call: str,
) -> None:
    path = rendered(tmp_path, tiny_model, conversation)
    arguments = ["render", path, "-m", tiny_model, "-o", "s3://bucket/tokens", "--scratch", tmp_path]
    running: list[subprocess.Popen[bytes]] = []

    def killed(asked: str, name: str) -> bool:
        if running and asked == method and "/tokens/part-00000" in name and call in name:
            running.pop().kill()
            return True
        return False

    store.fails = killed
    running.append(subprocess.Popen([sys.executable, "-m", "tokscore.cli.main", *map(str, arguments)]))
    assert running[0].wait() == -signal.SIGKILL
    assert "tokens/tokens/part-00000.parquet" not in store.names()
    started = time.monotonic()
    assert run(*arguments).exit_code == 0
    assert time.monotonic() - started < STORE_LEASE_S / 2, "the right of a process that ended kept it"
    assert run("verify", "s3://bucket/tokens").exit_code == 0
    assert not list(tmp_path.glob(".*.tmp"))


@pytest.mark.parametrize(
    ("command", "names"),
    [
        (
            ["diff", "{teacher}", "{student}", "-o", "{out}/diff"],
            ["diff/groups.parquet", "diff/tokens.parquet"],
        ),
        (
            ["diff", "{teacher}", "{student}", "--align", "text", "-o", "{out}/text"],
            ["text/groups.parquet", "text/spans.parquet"],
        ),
        (["export", "{teacher}", "-o", "{out}/a.parquet"], ["a.parquet"]),
    ],
    ids=lambda each: each[0],
)
def test_tables_are_written_to_a_bucket(
    store: StoreServer, scores: tuple[Path, Path], tmp_path: Path, command: list[str], names: list[str]
) -> None:
    (tmp_path / "out").mkdir()
    places = dict(zip(("teacher", "student"), map(str, scores), strict=True))
    for out in (tmp_path / "out", "s3://bucket/out"):
        done = run(*(each.format(**places, out=out) for each in command))
        assert done.exit_code == 0, done.output
    assert store.names() == [f"out/{name}" for name in names]
    for name in names:
        assert location(f"s3://bucket/out/{name}").read_bytes() == (tmp_path / "out" / name).read_bytes()
    again = run(*(each.format(**places, out="s3://bucket/out") for each in command))
    assert isinstance(again.exception, UsageError), "what is there stays"
