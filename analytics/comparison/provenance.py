"""What the manifests of two datasets say about a comparison that its numbers do not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tokscore.analytics.comparison.noise import MeasuredOn
from tokscore.dataset.files import PathName, path_name
from tokscore.dataset.manifest import ModelIdentity, read_manifest


def provenance_notes(
    teacher: PathName, student: PathName, measured_on: MeasuredOn | None = None
) -> Iterator[str]:
    """Sentences that a reader should have beside the numbers.

    Args:
        teacher: A score dataset, or its directory.
        student: Another one.
        measured_on: What the noise floor beside the numbers was measured on; None without one.

    Raises:
        InputError: One of them has no manifest.
    """
    models = [read_manifest(Path(path_name(side))).model for side in (teacher, student)]
    named = [model for model in models if model is not None]
    hashes = {model.sha256 for model in named}
    if len(named) == 2 and len(hashes) == 1 and None not in hashes:
        yield (
            f"both sides have the same weights ({named[0].name}): what differs comes from the engine, its "
            "settings or the template, not from the model."
        )
    if measured_on is not None and not any(measured_on.is_of(model) for model in named):
        sides = " and ".join(dict.fromkeys(_shown(model) for model in named))
        yield (
            f"the noise floor is that of {measured_on}, and the datasets were scored by {sides}: it says "
            "nothing about them. Run tokscore selfcheck with the model and engine of one of them."
        )


def _shown(model: ModelIdentity) -> str:
    return f"{model.name} ({model.engine}, {model.dtype})"
