from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.scoring.engines.server.served import Model, Served, by_last_two, serving
from tests.scoring.samples import MAX_LENGTH, VOCAB_SIZE
from tokscore.scoring import Engine, EngineSpec, plan_engine

# Short, so that what waits for a server in vain does not wait long.
SECONDS = {"retry_s": 20, "timeout_s": 10}


@pytest.fixture(scope="session")
def model_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model that is served: no weights are in it."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    folder.mkdir()
    config = {"vocab_size": VOCAB_SIZE, "max_position_embeddings": MAX_LENGTH}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="session")
def tiny_logprobs() -> Model:
    """Logprobs of the next id by the last two."""
    return by_last_two


@pytest.fixture
def serve(tiny_logprobs: Model) -> Iterator[Callable[..., tuple[Served, str]]]:
    """A server of the tiny model, and its address."""
    with ExitStack() as stack:

        def started(kind: str = "vllm", lie: str = "", **changes: Any) -> tuple[Served, str]:
            served = Served(changes.pop("model", tiny_logprobs), kind, lie, **changes)
            return served, stack.enter_context(serving(served))

        yield started


def plan(model: Path, *urls: str, top_k: int = 5, **settings: Any) -> EngineSpec:
    arguments = SECONDS | settings.pop("engine_arg", {})
    return plan_engine(str(model), url=urls, top_k=top_k, engine_arg=arguments, **settings)


@pytest.fixture
def connect(model_files: Path) -> Iterator[Callable[..., Engine]]:
    """An engine behind addresses."""
    with ExitStack() as stack:

        def started(*urls: str, **settings: Any) -> Engine:
            engine = plan(model_files, *urls, **settings).start()
            stack.callback(engine.close)
            return engine

        yield started
