"""What a server is: its kind, its model, its version, and how its logprobs look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from tokscore.dataset.errors import EngineError, UsageError, foreign
from tokscore.scoring.engines.server.connection import RefusedError, encoded
from tokscore.scoring.engines.server.dialects import DIALECTS
from tokscore.scoring.engines.server.dialects.dialect import AnswerError, Dialect, Question
from tokscore.scoring.engines.server.tries import until_answered

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokscore.dataset.manifest import Setting
    from tokscore.scoring.engines.server.connection import Connection

UNKNOWN = "unknown"
UNAUTHORIZED = 401
# Seconds in which a server must answer in one dialect before it is asked in the next.
PROBE_S = 10.0
# Fingerprints are rounded to so many decimals; of the same model they differ by no more than rounding and
# a few times what its logprobs move by from one pass to the next.
DECIMALS = 3
LEAST_DIFFERENCE = 2e-3
TIMES_NOISE = 4.0


class Served(NamedTuple):
    """A server as it describes itself.

    Attributes:
        dialect: How it is asked.
        model: Its name of the model.
        version: Name and version of its software.
        max_length: Most tokens of a prompt; None where it does not say.
    """

    dialect: Dialect
    model: str
    version: str
    max_length: int | None


class _Model(msgspec.Struct):
    id: str
    owned_by: str | None = None
    root: str | None = None
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model] = []


async def describe(connection: Connection, kind: str, model: str | None, retry_s: float) -> Served:
    """What a server is, by asking it.

    Args:
        connection: To it.
        kind: Its dialect, or auto.
        model: Its name of the model; None where it has one alone.
        retry_s: Seconds for all tries of one question.

    Raises:
        EngineError: It does not answer, or speaks no dialect.
        UsageError: It has several models, or none of that name.
    """

    async def about(path: str) -> bytes | None:
        return await until_answered(lambda _n: connection.get(path), retry_s)

    listed = _read(await about("/v1/models"), _Models) or _Models()
    found = _chosen(listed.data, model, connection.url)
    dialect = await _dialect(connection, kind, found.id, retry_s)
    name = found.id
    described = await _first(about, dialect.about_paths)
    if not name:
        name = str(described.get("served_model_name") or described.get("model_path") or UNKNOWN)
    version = (await _first(about, dialect.version_paths)).get("version")
    software = "sglang" if dialect.name == "sglang" else (found.owned_by or dialect.name)
    most = found.max_model_len
    return Served(
        dialect,
        foreign(name),
        f"{foreign(software)} {foreign(version or 'of unknown version')}",
        None if most is None else most - dialect.n_generated,
    )


async def loaded_names(connection: Connection, model: str | None, retry_s: float) -> list[str]:
    """What a server says that it has loaded, the tokenizer before the model: paths of its machine or hub ids.

    Args:
        connection: To it.
        model: Its name of the model; None where it has one alone.
        retry_s: Seconds for all tries of one question.

    Raises:
        EngineError: It does not answer.
        UsageError: It has several models, or none of that name.

    Source:
        vLLM, entrypoints/openai/models/serving.py (`root`) and serve/tokenize/serving.py.
        SGLang, native APIs (`/model_info`).
    """

    async def about(path: str) -> bytes | None:
        return await until_answered(lambda _n: connection.get(path), retry_s)

    listed = _read(await about("/v1/models"), _Models) or _Models()
    found = _chosen(listed.data, model, connection.url)
    of_tokenizer = await _first(about, ["/tokenizer_info"])
    of_model = await _first(about, DIALECTS["sglang"].about_paths)
    said = (
        of_tokenizer.get("name_or_path"),
        of_model.get("tokenizer_path"),
        of_model.get("model_path"),
        found.root,
    )
    names = [name for name in said if isinstance(name, str) and name]
    # Whoever started the server may have called the model anything.
    return list(dict.fromkeys(names or [name for name in (found.id,) if name]))


def _chosen(models: Sequence[_Model], name: str | None, url: str) -> _Model:
    if name is None and len(models) > 1:
        names = ", ".join(foreign(each.id) for each in models)
        raise UsageError(f"{url} serves several models: {names}. Choose one with `server_model`.")
    if name is None:
        return models[0] if models else _Model("")
    named = [each for each in models if each.id == name]
    if models and not named:
        names = ", ".join(foreign(each.id) for each in models)
        raise UsageError(f"{url} serves no model {name}; it has {names}.")
    return named[0] if named else _Model(name)


async def _first(about: Any, paths: Sequence[str]) -> Mapping[str, Any]:  # Any: a function, JSON values
    for path in paths:
        found: dict[str, Any] | None = _read(await about(path), dict[str, Any])
        if found:
            return found
    return {}


def _read(body: bytes | None, form: Any) -> Any:  # Any: a type, and a value of it
    if body is None:
        return None
    try:
        return msgspec.json.decode(body, type=form)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


async def _dialect(connection: Connection, kind: str, model: str, retry_s: float) -> Dialect:
    """The first dialect in which a prompt of two tokens has a logprob."""
    if kind != "auto":
        return DIALECTS[kind]
    question = Question(np.array([1, 2], np.int32), top_k=0)
    reasons = []
    for dialect in DIALECTS.values():
        body = encoded(dialect.request(model, question))

        async def ask(_n: int, dialect: Dialect = dialect, body: bytes = body) -> None:
            dialect.read(await connection.post(dialect.path, body), question)

        try:
            await until_answered(ask, min(retry_s, PROBE_S))
        except RefusedError as error:
            if error.status == UNAUTHORIZED:  # 403 may be about this path alone
                raise
            reasons.append(f"{dialect.name}: {error}")
        except (EngineError, AnswerError) as error:
            reasons.append(f"{dialect.name}: {error}")
        else:
            return dialect
    raise EngineError(
        f"{connection.url} gives no logprobs of prompts in a way that is known here (`server_kind`).\n"
        + "\n".join(reasons)
    )


def fingerprint(logprobs: NDArray[np.float32]) -> str:
    """Logprobs of fixed sequences as text, for a manifest."""
    return " ".join(f"{value:.{DECIMALS}f}" for value in logprobs.astype(np.float64))


def check_same(earlier: Mapping[str, Setting], now: Mapping[str, Setting]) -> None:
    """Refuse to go on with another model.

    Args:
        earlier: Details of the engine that scored before.
        now: Of the engine that is to go on.

    Raises:
        UsageError: Their fingerprints differ by more than the noise of either.
    """
    before, after = (details.get("fingerprint") for details in (earlier, now))
    if not isinstance(before, str) or not isinstance(after, str):
        return
    distance = difference(before, after)
    if distance > allowed(max(_noise(earlier), _noise(now))):
        raise UsageError(
            "the server has another model than the one that scored before: logprobs of the same tokens "
            f"differ by up to {distance:.3g} nats, noise explains "
            f"{allowed(max(_noise(earlier), _noise(now))):.3g}.\n"
            "Write to another directory, or serve the same model."
        )


def difference(one: str, other: str) -> float:
    """The largest difference between two fingerprints, in nats; inf where they are of other sequences."""
    values = [np.array([float(value) for value in each.split()]) for each in (one, other)]
    if values[0].shape != values[1].shape:
        return float("inf")
    apart = np.where(values[0] == values[1], 0.0, np.abs(values[0] - values[1]))
    return float(apart.max(initial=0.0))


def allowed(noise: float) -> float:
    """What fingerprints of one model may differ by, in nats, where its logprobs move by `noise`."""
    return max(LEAST_DIFFERENCE, TIMES_NOISE * noise)


def _noise(details: Mapping[str, Setting]) -> float:
    value = details.get("noise")
    return float(value) if isinstance(value, int | float) else 0.0
