"""Servers on loopback that speak as Google Cloud Storage and as Azure Blob Storage do."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, Protocol

_BUCKET = "bucket"


class OtherStore(Protocol):
    """A server with one bucket.

    Attributes:
        url: Of the bucket.
        environment: Variables with which it is found.
    """

    url: str
    environment: Mapping[str, str]

    def start(self) -> None: ...

    def stop(self) -> None: ...


@contextmanager
def away(store: OtherStore, seconds: float) -> Iterator[None]:
    """Nobody answers from now on, for some seconds."""
    store.stop()
    timer = threading.Timer(seconds, store.start)
    timer.start()
    try:
        yield
    finally:
        timer.join()


class GoogleStore:
    """The emulator of PyPI, with the one condition of uploads that it lacks.

    Source:
        Cloud Storage, Request preconditions: with ifGenerationMatch=0 a request succeeds where there is no live
        version of the object, and is answered with 412 otherwise.
    """

    url = f"gs://{_BUCKET}"

    def __init__(self) -> None:
        from gcp_storage_emulator import server
        from gcp_storage_emulator.exceptions import NotFound
        from gcp_storage_emulator.handlers import objects

        def insert(request: Any, response: Any, storage: Any) -> None:  # Any: the emulator has no types
            if request.query.get("ifGenerationMatch") == ["0"]:
                try:
                    storage.get_file_obj(request.params["bucket_name"], request.data["meta"]["name"])
                except NotFound:
                    pass
                else:
                    response.status = HTTPStatus.PRECONDITION_FAILED
                    return
            objects.insert(request, response, storage)

        for _, handlers in server.HANDLERS:
            if handlers.get(server.POST) is objects.insert:
                handlers[server.POST] = insert
        self._port = _free_port()
        self._server = server.create_server("127.0.0.1", self._port, in_memory=True, default_bucket=_BUCKET)
        self._new_thread = lambda: server.APIThread("127.0.0.1", self._port, self._server._storage)
        self.environment = {
            "STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{self._port}",
            # Asks for the kind of a bucket, which the emulator does not know, with other credentials.
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        }
        self._server.start()

    def start(self) -> None:
        self._server._api = self._new_thread()
        self._server.start()

    def stop(self) -> None:
        self._server.stop()


class AzureStore:
    """Azurite, Microsoft's emulator, of npm."""

    url = f"az://{_BUCKET}"
    # The account that every Azurite has.
    _KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

    def __init__(self, folder: Path) -> None:
        self._folder, self._port = folder, _free_port()
        self._process: subprocess.Popen[bytes] | None = None
        url = f"http://127.0.0.1:{self._port}/devstoreaccount1"
        self.environment = {
            "AZURE_STORAGE_CONNECTION_STRING": "DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;"
            f"AccountKey={self._KEY};BlobEndpoint={url};"
        }
        self.start()
        from adlfs import AzureBlobFileSystem

        AzureBlobFileSystem(connection_string=self.environment["AZURE_STORAGE_CONNECTION_STRING"]).mkdir(
            _BUCKET
        )

    def start(self) -> None:
        command = ["azurite-blob", "--blobHost", "127.0.0.1", "--blobPort", str(self._port)]
        options = ["--location", str(self._folder), "--disableTelemetry", "--skipApiVersionCheck", "--silent"]
        self._process = subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL, cwd=self._folder)
        give_up = time.monotonic() + 60
        while time.monotonic() < give_up:
            with socket.socket() as one:
                if not one.connect_ex(("127.0.0.1", self._port)):
                    return
            time.sleep(0.1)
        raise TimeoutError("azurite-blob does not answer")

    def stop(self) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait()


def has_azurite() -> bool:
    return shutil.which("azurite-blob") is not None


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
