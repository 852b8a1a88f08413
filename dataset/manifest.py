"""The manifest of a dataset: what it was made from, with what, and in which parts."""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from tokscore.dataset.errors import InputError, UsageError
from tokscore.dataset.files import check_is_text, location
from tokscore.dataset.schema import SCHEMA_VERSION, DatasetKind

_SHOWN_CHARACTERS = 200
MANIFEST_NAME = "manifest.json"
# What is no part of the plan.
_UNPLANNED = ("plan_hash", "engine_details", "tokenizer_details", "earlier_plans")
# Plans of more parts are not indented: those of 10^6 parts are read in a second then.
INDENTED_PARTS = 1_000

# JSON scalars only, so that equal settings have equal text.
Setting = str | int | float | bool | None


# The settings of a manifest by name: those of tokens, and those that scores have beside them.
TOKEN_SETTINGS: Mapping[str, str] = {
    "add_generation_prompt": "Whether each conversation ends with the opener of the next answer.",
    "template_kwargs": "Variables for the template, as JSON.",
    "template_time": "Time that a template which prints the date took for now; absent where none is printed.",
    "tools_sha256": "Of the tool definitions for records that carry none; null without.",
    "input_format": "Format of the input.",
    "map": "Where its records have their messages, ids and names, as JSON; absent for formats by name.",
    "chunk": "Tokens of the windows of plain text; absent where it is whole.",
    "stride": "Tokens from one window to the next; absent where they do not overlap.",
    "context": "First tokens of every window that do not count; absent without any.",
    "messages": "How messages were shown to the template: auto, server or as-is.",
    "verify": "How much of the rendering was compared with transformers.",
    "max_tokens": "Most tokens a conversation may have; null without a limit.",
    "truncate": "What happened to longer ones: error, left or right; null without a limit.",
    "transformers": "Version of transformers, which runs templates and tokenizers.",
}
SCORE_SETTINGS: Mapping[str, str] = {
    "top_k": "Number of most likely ids kept at every position.",
    "temperature": "What the logits were divided by.",
    "logprob_mode": "raw: log-softmax of the logits over the temperature, with nothing else done to them.",
    "dtype": "Type the model computed in.",
    "score": "Which tokens have scores.",
    "max_length": "Longer conversations are error rows; null without a limit but the model's own.",
    "head_dtype": "Type of the logits, as asked.",
    "quantization": "Method given to vLLM; null without.",
    "engine_arguments": "What `engine_arg` gave the engine, as JSON.",
}
SETTINGS: Mapping[str, str] = {**TOKEN_SETTINGS, **SCORE_SETTINGS}


class EarlierPlan(msgspec.Struct, frozen=True):
    """A plan to which inputs were added.

    Attributes:
        plan_hash: Of its manifest, and in the files of its parts.
        n_parts: It had the first so many parts.
    """

    plan_hash: str
    n_parts: int


class InputFile(msgspec.Struct, frozen=True):
    """One input as it was when the plan was made.

    Attributes:
        name: Base name; no directory of the machine enters a dataset.
        size_bytes: Length, of a compressed file the length of what is in it.
        sha256: Of the same content; for a dataset, of its plan.
        earlier_plans: Of a dataset to which inputs were added, the oldest first; no part of the plan,
            and absent without any.
    """

    name: str
    size_bytes: int
    sha256: str
    earlier_plans: list[EarlierPlan] | msgspec.UnsetType = msgspec.UNSET


class Part(msgspec.Struct, frozen=True):
    """One unit of work and of resuming.

    Attributes:
        index: Position in the plan.
        file: Index of the input it reads.
        start: First byte it reads (first conversation where the input is a dataset).
        stop: End, half-open.
        first_line: 1-based line number at `start`.
        renamed: Ids given to conversations whose own id was taken, by line number.
    """

    index: int
    file: int
    start: int
    stop: int
    first_line: int
    renamed: dict[str, str] = {}


class TokenizerIdentity(msgspec.Struct, frozen=True):
    """Identity of a tokenizer: equal hashes give equal ids.

    Attributes:
        name: Base name of the directory, or the hub id.
        revision: Commit on the hub, where known.
        sha256: Of the tokenizer's files.
        template_sha256: Of the chat template.
        vocab_size: Number of ids, added tokens included.
    """

    name: str
    revision: str | None
    sha256: str
    template_sha256: str
    vocab_size: int


class ModelIdentity(msgspec.Struct, frozen=True):
    """Identity of the model and engine that scored the tokens.

    Attributes:
        name: Base name of the directory, or the hub id.
        revision: Commit on the hub, where known.
        sha256: Of configuration and weights; above 8 GiB, of 64 KiB in every 8 MiB of these. Null for made-up
            weights.
        vocab_size: Width of the logits.
        dtype: Type the model computed in.
        engine: Engine name.
        engine_version: Versions of the engine's packages.
    """

    name: str
    revision: str | None
    sha256: str | None
    vocab_size: int
    dtype: str
    engine: str
    engine_version: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """All that two runs must share for their parts to fit together.

    It holds no times and nothing of the machine, so every shard writes the same bytes.

    Attributes:
        kind: "tokens" or "scores".
        tokscore_version: What wrote it.
        settings: Rendering and scoring settings that change numbers.
        tokenizer: What made the ids.
        model: What scored them; null in a token dataset.
        inputs: The files, or the token dataset, in the order of the plan.
        parts: The plan.
        schema_version: Of the tables.
        plan_hash: sha256 of everything else here but the details; parts with another are refused.
        engine_details: How the engine that first wrote here scored; no part of the plan, and null until an
            engine has started.
        tokenizer_details: The library that made the ids in the run that first wrote here, as chosen and as
            used, with the reason where it is another; no part of the plan, since ids do not depend on it.
        earlier_plans: Of this dataset before inputs were added, the oldest first; absent without any.
    """

    kind: DatasetKind
    tokscore_version: str
    settings: dict[str, Setting]
    tokenizer: TokenizerIdentity
    model: ModelIdentity | None
    inputs: list[InputFile]
    parts: list[Part]
    schema_version: int = SCHEMA_VERSION
    plan_hash: str = ""
    engine_details: dict[str, Setting] | None = None
    tokenizer_details: dict[str, Setting] | None = None
    earlier_plans: list[EarlierPlan] | msgspec.UnsetType = msgspec.UNSET

    def sealed(self) -> Manifest:
        """This manifest with `plan_hash` set from everything else in it.

        Raises:
            UsageError: A name or a setting holds half of a character pair.
        """
        try:
            planned = {
                name: _canonical(getattr(self, name))
                for name in self.__struct_fields__
                if name not in _UNPLANNED
            }
            plain = [msgspec.structs.replace(file, earlier_plans=msgspec.UNSET) for file in self.inputs]
            planned["inputs"] = _canonical(plain)
            return msgspec.structs.replace(self, plan_hash=_plan_hash(planned))
        except UnicodeEncodeError as error:
            raise UsageError(
                f"{ascii(error.object)[:_SHOWN_CHARACTERS]} is not UTF-8, or holds half of a character pair; "
                "expected text that can be stored. Change the option or the name."
            ) from error

    def to_json(self) -> bytes:
        """JSON, byte-identical for equal manifests; indented but for the parts of long plans."""
        if len(self.parts) <= INDENTED_PARTS:
            text = msgspec.json.encode(self, order="deterministic")
            return msgspec.json.format(text, indent=2) + b"\n"
        around = msgspec.structs.replace(self, parts=[]).to_json()
        return around.replace(_NO_PARTS, _NO_PARTS[:-2] + _canonical(self.parts), 1)

    def plans_of(self, part: int) -> set[str]:
        """Hashes that the files of a part may have: of the plans that had it, from the first on."""
        earlier = self.earlier_plans or []
        return {self.plan_hash, *(plan.plan_hash for plan in earlier if part < plan.n_parts)}

    def parquet_metadata(self) -> dict[str, str]:
        """Key-value metadata that makes one Parquet file readable alone."""
        values: dict[str, Setting] = {
            "schema_version": self.schema_version,
            "plan_hash": self.plan_hash,
            "tokenizer": self.tokenizer.name,
            "tokenizer_sha256": self.tokenizer.sha256,
            "template_sha256": self.tokenizer.template_sha256,
            "vocab_size": self.tokenizer.vocab_size,
        }
        if self.model is not None:
            values |= {
                "model": self.model.name,
                "revision": self.model.revision,
                "vocab_size": self.model.vocab_size,
                "dtype": self.model.dtype,
                "engine": self.model.engine,
                "engine_version": self.model.engine_version,
                "top_k": self.settings["top_k"],
                "temperature": self.settings["temperature"],
                "score": self.settings.get("score"),
            }
        if self.engine_details is not None:
            details = msgspec.json.encode(self.engine_details, order="deterministic")
            values["engine_details"] = details.decode()
        return {f"tokscore.{key}": str(value) for key, value in values.items() if value is not None}


_NO_PARTS = b'"parts": []'
# How parts begin in the text that is hashed: without spaces, keys in the order of the alphabet.
_CANONICAL_PARTS = b'[{"file":'


def _canonical(value: object) -> bytes:
    return msgspec.json.encode(value, order="sorted")


def _plan_hash(planned: Mapping[str, bytes]) -> str:
    """Of the JSON object with these values, which are canonical."""
    pairs = (msgspec.json.encode(name) + b":" + planned[name] for name in sorted(planned))
    return hashlib.sha256(b"{" + b",".join(pairs) + b"}").hexdigest()


def _is_sealed(manifest: Manifest, content: Mapping[str, msgspec.Raw]) -> bool:
    """Whether the hash in a file is that of all it has, fields that later versions add included."""
    planned = {name: bytes(value) for name, value in content.items() if name not in _UNPLANNED}
    plain = {name: msgspec.json.decode(value) for name, value in planned.items() if name != "parts"}
    for file in plain.get("inputs", []):
        file.pop("earlier_plans", None)
    others = {name: _canonical(value) for name, value in plain.items()}
    parts = planned.get("parts", b"[]")
    if parts.startswith(_CANONICAL_PARTS) and _plan_hash({**others, "parts": parts}) == manifest.plan_hash:
        return True
    return _plan_hash({**others, "parts": _canonical(msgspec.json.decode(parts))}) == manifest.plan_hash


@contextmanager
def _without_collector() -> Iterator[None]:
    """Objects are made without looking for garbage among them, which takes most of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def made_by(manifest: Manifest) -> tuple[str | None, str | None]:
    """The library that made the ids, and why it is not the one that was to be used; None where not known."""
    details = manifest.tokenizer_details or {}
    library, reason = (details.get(key) for key in ("made_by", "reason"))
    return (
        library if isinstance(library, str) else None,
        reason if isinstance(reason, str) else None,
    )


def read_manifest(root: Path) -> Manifest:
    """The manifest of the dataset at `root`.

    Raises:
        InputError: There is none, it is damaged or was changed, or another schema version wrote it.
        UsageError: The path is not UTF-8, or a URL that cannot be read here.
    """
    check_is_text(root)
    root = location(root)
    path = root / MANIFEST_NAME
    if not root.is_dir():
        found = "is a file" if root.exists() else "does not exist"
        raise InputError(f"{root} {found}; expected a dataset directory.")
    if not path.is_file():
        raise InputError(
            f"{root} has no {MANIFEST_NAME}; expected a dataset that tokscore render or logprobs wrote."
        )
    try:
        text = path.read_bytes()
        content = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        with _without_collector():
            manifest = msgspec.json.decode(text, type=Manifest)
            is_sealed = _is_sealed(manifest, content)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InputError(
            f"{path} is not a manifest of tokscore: {error}. Write the dataset again."
        ) from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error
    if manifest.schema_version != SCHEMA_VERSION:
        raise InputError(
            f"{path} has schema version {manifest.schema_version}; expected {SCHEMA_VERSION}. "
            "Write the dataset again with this version of tokscore."
        )
    if not is_sealed:
        raise InputError(
            f"{path} was changed after it was written: its plan_hash is not that of its contents. "
            "Write the dataset again."
        )
    if not manifest.parts or [part.index for part in manifest.parts] != [*range(len(manifest.parts))]:
        raise InputError(f"{path} has no parts 0, 1, 2 and so on. Write the dataset again.")
    return manifest
