"""Paths of stores: as text, and with the least number of requests."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from tests.dataset.claims import two_writers
from tests.store_server import StoreServer
from tokscore.dataset.claims.commit import finished_names, part_name
from tokscore.dataset.errors import UsageError
from tokscore.dataset.files import location, output_location
from tokscore.dataset.reading import Dataset
from tokscore.dataset.stores import calls
from tokscore.dataset.stores.path import StorePath
from tokscore.dataset.stores.urls import without_secrets


def test_a_path_that_lost_a_slash_is_the_same_place() -> None:
    assert location(Path("s3://bucket/a")) == location("s3://bucket/a")
    assert str(location(Path("s3://bucket/a")) / "b") == "s3://bucket/a/b"


def test_a_path_of_a_store_survives_pickling() -> None:
    path = location("s3://bucket/a") / "tokens"
    found = pickle.loads(pickle.dumps(path))
    assert isinstance(found, StorePath)
    assert found == path


def test_files_of_this_machine_stay_what_they_are(tmp_path: Path) -> None:
    assert location(tmp_path) == tmp_path
    assert location(f"file://{tmp_path}") == tmp_path


def test_the_query_of_a_web_address_is_not_shown() -> None:
    path = location("https://host/a.jsonl?signature=secret")
    assert (str(path), path.name) == ("https://host/a.jsonl", "a.jsonl")
    assert isinstance(path, StorePath)
    assert path.url == "https://host/a.jsonl?signature=secret"


@pytest.mark.parametrize("name", ["https://host/out", "hf://datasets/me/out"])
def test_nothing_is_written_where_two_writers_cannot_be_told_apart(name: str) -> None:
    with pytest.raises(UsageError, match="is where tokscore only reads"):
        output_location(name)


def test_seconds_that_are_none_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    calls.fault_of.cache_clear()
    monkeypatch.setenv("TOKSCORE_STORE_PATIENCE_S", "soon")
    with pytest.raises(UsageError, match="TOKSCORE_STORE_PATIENCE_S is 'soon'; expected seconds"):
        location("s3://bucket/a")
    calls.fault_of.cache_clear()


@pytest.mark.parametrize(
    ("scheme", "message"),
    [
        ("s3", r"needs the package s3fs.*pip install 'tokscore\[s3\]'"),
        ("gs", r"needs the package gcsfs.*pip install 'tokscore\[gs\]'"),
        ("az", r"needs the package adlfs.*pip install 'tokscore\[az\]'"),
        ("hf", r"needs the package huggingface_hub.*pip install huggingface_hub"),
    ],
)
def test_the_package_of_a_store_is_named_where_it_is_missing(
    monkeypatch: pytest.MonkeyPatch, scheme: str, message: str
) -> None:
    calls.fault_of.cache_clear()
    monkeypatch.setattr(calls, "find_spec", lambda _name: None)
    try:
        with pytest.raises(UsageError, match=message):
            location(f"{scheme}://bucket/a")
    finally:
        calls.fault_of.cache_clear()


def test_secrets_are_taken_out_of_what_libraries_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_KEY", "0123456789abcdef")
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", "AccountName=me;AccountKey=ab+cd==;BlobEndpoint=x")
    text = "GET http://me:pw@host/a?sig=xyz failed with 0123456789abcdef and ab+cd== of me"
    assert without_secrets(text) == "GET http://host/a failed with ... and ... of me"


@pytest.mark.slow
def test_a_thousand_parts_are_listed_in_one_pass(store: StoreServer) -> None:
    root = location("s3://bucket/out")
    folder = root / "tokens"
    assert isinstance(folder, StorePath)
    folder.store.pipe({f"bucket/out/tokens/{part_name(i)}": b"x" for i in range(1000)})
    store.requests.clear()
    assert finished_names(root, "tokens", range(1001)) == {*range(1000)}
    assert [each.method for each in store.requests] == ["GET"]


@pytest.mark.slow
def test_reading_goes_on_after_the_network_was_away(store: StoreServer) -> None:
    path = location("s3://bucket/a.bin")
    path.write_bytes(bytes(range(256)) * 1024)
    with path.open("rb") as file, store.away(1.0):
        file.seek(1000)
        assert file.read(4) == bytes([232, 233, 234, 235])


@pytest.mark.slow
def test_a_store_that_stays_away_is_told(store: StoreServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "PATIENCE_S", 0.5)
    path = location("s3://bucket/a.bin")
    store.stop()
    try:
        with pytest.raises(OSError, match="the store cannot be reached"):
            path.read_bytes()
    finally:
        store.start()


def test_a_dataset_is_opened_with_one_look_at_each_file(store: StoreServer, tmp_path: Path) -> None:
    n_parts = 8
    root = tmp_path / "tokens"
    for part in range(n_parts):
        assert two_writers.write(root, part, 1)
    (root / "manifest.json").write_bytes(two_writers.MANIFEST.to_json())
    files = [path.relative_to(root).as_posix() for path in root.rglob("*.*")]
    for name in files:
        location(f"s3://bucket/out/{name}").write_bytes((root / name).read_bytes())
    store.requests.clear()
    Dataset("s3://bucket/out", partial=True)
    asked = [each for each in store.requests if each.method == "GET" and each.path.startswith("/bucket/out/")]
    filled = [name for name in files if not name.startswith("errors/")]  # nothing is in the others
    assert sorted(each.path.removeprefix("/bucket/out/") for each in asked) == sorted(filled)
    assert len(store.requests) - len(asked) < 15, (
        "listings and looks at the manifest, for any number of parts"
    )
