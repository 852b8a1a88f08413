"""The tokenizer of a served model, found by what the server says that it has loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokscore.dataset.errors import InputError, UsageError, foreign
from tokscore.rendering.tokenizers.loading import load_tokenizer
from tokscore.scoring.engines.registry import check_installed
from tokscore.scoring.engines.server.addresses import check
from tokscore.scoring.engines.server.identity import loaded_names
from tokscore.scoring.engines.server.planning import ask

if TYPE_CHECKING:
    from tokscore.scoring.engines.server.connection import Connection
    from tokscore.scoring.engines.settings import EngineSettings


def served_tokenizer(
    settings: EngineSettings, revision: str | None = None, *, trust_remote_code: bool = False
) -> str:
    """The directory or hub id of a tokenizer that the server has loaded and that can be loaded here too.

    Args:
        settings: Where the model is served.
        revision: On the hub.
        trust_remote_code: Whether code that comes with the model may run.

    Raises:
        UsageError: There is no address, or nothing that the server names can be loaded here.
        EngineError: The server does not answer.
    """
    if not settings.url:
        raise UsageError("there is no model: give `model`, or the `url` of a server that says what it has.")
    check_installed("server")
    check(settings)

    async def loaded(connection: Connection, retry_s: float) -> list[str]:
        return await loaded_names(connection, settings.server_model, retry_s)

    names = [foreign(name) for name in ask(settings, loaded)]
    for name in names:
        try:
            load_tokenizer(name, revision, trust_remote_code=trust_remote_code)
        except InputError:
            continue
        return name
    said = f"names {' and '.join(names)}, of which no tokenizer can be loaded here" if names else "names none"
    raise UsageError(
        f"there is no `model`, and {settings.url[0]} {said}.\n"
        "Give `model`: a directory with the tokenizer and chat template of the model, or its hub id."
    )
