"""An engine and a model that fit together, and starting them."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Unpack, cast

from tokscore.dataset.errors import UsageError
from tokscore.dataset.manifest import ModelIdentity, Setting
from tokscore.dataset.settings import Usual, changed
from tokscore.scoring.engines.model import find_model
from tokscore.scoring.engines.registry import AUTO, ENGINES, check_installed, choose_engine, load_target
from tokscore.scoring.engines.settings import (
    LENGTH_ARGUMENT,
    Dtype,
    EngineKeywords,
    EngineSettings,
    check_settings,
)

if TYPE_CHECKING:
    from tokscore.scoring.engines.contract import Engine
    from tokscore.scoring.engines.model import ModelFiles


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """An engine and a model, checked but not started.

    Attributes:
        model: The model's directory and what its configuration says.
        identity: What the manifest says of model and engine.
        settings: What the engine is told.
        shares: Whether sequences will come with trunks, so that it pays to keep what they share.
    """

    model: ModelFiles
    identity: ModelIdentity
    settings: EngineSettings
    shares: bool = False

    def recorded(self) -> dict[str, Setting]:
        """Settings for the manifest that change the numbers, beyond model, top_k and temperature."""
        unrecorded = ENGINES[self.identity.engine].unrecorded
        given = self.settings.engine_arg
        arguments = {name: given[name] for name in sorted(given) if name not in unrecorded}
        return {
            "head_dtype": self.settings.head_dtype.value,
            "quantization": self.settings.quantization,
            "engine_arguments": json.dumps(arguments, sort_keys=True),
            **({"trust_remote_code": True} if self.model.trust_remote_code else {}),
        }

    def start(self, longest: int | None = None) -> Engine:
        """Load the model.

        Args:
            longest: Most tokens a sequence will have, where known; engines reserve memory by it.

        Raises:
            EngineError: The engine cannot start.
        """
        engine = load_target(ENGINES[self.identity.engine].target)
        return cast("Engine", engine(self, min(longest or self.model.max_length, self.model.max_length)))


def plan_engine(
    model: str,
    settings: EngineSettings | None = None,
    *,
    revision: str | None = None,
    trust_remote_code: bool = False,
    **changes: Unpack[EngineKeywords],
) -> EngineSpec:
    """Check that a model can be scored as asked, without starting anything.

    Args:
        model: A model directory or hub id.
        settings: What the engine is told; its choice by default.
        revision: Branch, tag or commit on the hub; a directory has none.
        trust_remote_code: Whether code that comes with the model may run.
        **changes: Single settings, instead of those in `settings`.

    Raises:
        UsageError: Settings that do not exist or do not go together.
        InputError: No such model.
        EngineError: The engine's packages are not installed.
    """
    settings = changed(settings or EngineSettings(), changes)
    name = choose_engine("server" if settings.engine == AUTO and settings.url else settings.engine)
    check_settings(settings, name)
    check_installed(name)
    row = ENGINES[name]
    identity: ModelIdentity | None = None
    if row.plan is None:
        files = find_model(model, revision, trust_remote_code=trust_remote_code)
    else:
        files, identity = load_target(row.plan)(model, settings, revision)
    if LENGTH_ARGUMENT in settings.engine_arg:
        files = replace(files, max_length=settings.engine_arg[LENGTH_ARGUMENT])
    if isinstance(settings.top_k, Usual):
        settings = changed(settings, {"top_k": min(int(settings.top_k), files.vocab_size)})
    if settings.top_k > files.vocab_size:
        raise UsageError(
            f"`top_k` is {settings.top_k}; expected 0 to {files.vocab_size}, the vocabulary size of "
            f"{files.name}."
        )
    if identity is not None:
        return EngineSpec(files, identity, settings)
    has_weights = row.without_weights is None or row.without_weights not in settings.engine_arg.items()
    identity = ModelIdentity(
        name=files.name,
        revision=files.revision,
        sha256=files.sha256() if has_weights else None,
        vocab_size=files.vocab_size,
        dtype=files.dtype if settings.dtype is Dtype.AUTO else settings.dtype.value,
        engine=name,
        engine_version=row.versions(),
    )
    return EngineSpec(files, identity, settings)


def load_engine(
    name: str, model: str, *, longest: int | None = None, **settings: Unpack[EngineKeywords]
) -> Engine:
    """An engine with its model loaded; arguments and errors as in `plan_engine` and `EngineSpec.start`."""
    return plan_engine(model, EngineSettings(engine=name), **settings).start(longest)
