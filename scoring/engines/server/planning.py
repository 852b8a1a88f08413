"""A served model, described before it is used: by itself, and by the files of its tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tokscore.dataset.errors import InputError, UsageError
from tokscore.dataset.manifest import ModelIdentity
from tokscore.scoring.engines.checkpoint.config import load_config
from tokscore.scoring.engines.checkpoint.positions import switch_length_of
from tokscore.scoring.engines.model import ModelFiles
from tokscore.scoring.engines.server.addresses import RETRY, SECONDS, TIMEOUT
from tokscore.scoring.engines.server.connection import Connection, Loop
from tokscore.scoring.engines.server.identity import UNKNOWN, Served, describe

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tokscore.scoring.engines.settings import EngineSettings

Answer = TypeVar("Answer")
# Of a tokenizer on the hub.
FILES = ["*.json", "*.txt", "*.model", "*.jinja"]


def ask(settings: EngineSettings, question: Callable[[Connection, float], Awaitable[Answer]]) -> Answer:
    """What the first of the servers answers.

    Args:
        settings: Where it is.
        question: Called with a connection to it and the seconds for all tries of one request.
    """
    retry_s, timeout_s = (float(settings.engine_arg.get(name, SECONDS[name])) for name in (RETRY, TIMEOUT))

    async def asked() -> Answer:
        connection = Connection(settings.url[0], 1, timeout_s)
        try:
            return await question(connection, retry_s)
        finally:
            await connection.close()

    loop = Loop()
    try:
        return loop.run(asked())
    finally:
        loop.stop()


def plan(model: str, settings: EngineSettings, revision: str | None) -> tuple[ModelFiles, ModelIdentity]:
    """The model behind the addresses.

    Args:
        model: Directory or hub id of its tokenizer; weights are not needed.
        settings: Where it is served.
        revision: Of the tokenizer on the hub.

    Raises:
        EngineError: The server does not answer, or speaks no known dialect.
        InputError: There is no such tokenizer.
        UsageError: It has several models, or none of the name; or nobody knows how many tokens it takes.
    """
    path = _folder(model, revision)

    async def description(connection: Connection, retry_s: float) -> Served:
        return await describe(connection, settings.server_kind, settings.server_model, retry_s)

    served = ask(settings, description)
    config = _config(path)
    vocab_size, said = _vocab_size(path, config), config.get("max_position_embeddings")
    length = served.max_length or (said if isinstance(said, int) and said > 0 else None)
    if length is None and "max_model_len" not in settings.engine_arg:
        raise UsageError(
            f"neither {settings.url[0]} nor {model} says how many tokens the model takes; say so: "
            "`engine_arg` max_model_len=N."
        )
    length = length or int(settings.engine_arg["max_model_len"])
    # A server that loaded a folder calls its model by the path, which is of its machine.
    is_path = served.model.startswith(("/", "~", "."))
    name = served.model.rstrip("/").rpartition("/")[2] if is_path else served.model
    files = ModelFiles(
        path, name, None, vocab_size, length, length, UNKNOWN, 0, _switch_length(path, config, name)
    )
    identity = ModelIdentity(
        name=name,
        revision=None,
        sha256=None,
        vocab_size=vocab_size,
        dtype=UNKNOWN,
        engine="server",
        engine_version=served.version,
    )
    return files, identity


def _folder(model: str, revision: str | None) -> Path:
    path = Path(model).expanduser()
    if path.is_dir():
        return path.resolve()
    if path.exists() or model.startswith((".", "/", "~")) or model.count("/") > 1:
        raise InputError(
            f"{model} is no directory; expected one with the tokenizer of the model, or a hub id."
        )
    from huggingface_hub import snapshot_download

    try:
        return Path(
            snapshot_download(model, revision=revision, allow_patterns=FILES, ignore_patterns=["*/*"])
        )
    except Exception as error:  # The client raises its own, httpx's and built-in errors.
        raise InputError(
            f"{model} is no directory here, and the hub did not provide it: {type(error).__name__}."
        ) from error


def _config(path: Path) -> dict[str, Any]:  # Any: JSON values
    """The part of config.json about text; nothing where there is none."""
    config = _json(path / "config.json")
    text = config.get("text_config")
    return text if isinstance(text, dict) else config


def _vocab_size(path: Path, config: dict[str, Any]) -> int:  # Any: JSON values
    """Width of the logits by config.json, otherwise one more than the largest id of the tokenizer."""
    stated = config.get("vocab_size")
    if isinstance(stated, int) and stated > 0:
        return stated
    tokenizer = _json(path / "tokenizer.json")
    vocabulary = (tokenizer.get("model") or {}).get("vocab") or {}
    ids = [*vocabulary.values()] if isinstance(vocabulary, dict) else [*range(len(vocabulary))]
    ids += [token.get("id", 0) for token in tokenizer.get("added_tokens") or []]
    if not ids:
        raise InputError(f"{path.name} has neither a config.json with vocab_size nor a tokenizer.json.")
    return 1 + int(max(ids))


def _switch_length(path: Path, config: dict[str, Any], name: str) -> int | None:  # Any: JSON values
    """The length above which a model has other positions, so that sequences do not begin alike."""
    text = json.dumps(config)
    if not any(f'"{kind}"' in text for kind in ("longrope", "su", "dynamic")):
        return None
    return switch_length_of(load_config(path, name).get_text_config())


def _json(path: Path) -> dict[str, Any]:  # Any: JSON values
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
