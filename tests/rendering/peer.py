"""The hand-written renderers of another project, imported from the test assets."""

from __future__ import annotations

import importlib
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

_HARMONY = ["Conversation", "DeveloperContent", "HarmonyEncoding", "HarmonyEncodingName", "Message"]
_HARMONY += ["ReasoningEffort", "Role", "SystemContent", "ToolDescription", "load_harmony_encoding"]


def load_peer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Its package, with stand-ins for what only its HTTP client, its configuration and gpt-oss need."""
    pydantic = pytest.importorskip("pydantic")
    strict = {"model_config": {"extra": "forbid"}, "__module__": "pydantic_config"}
    stand_ins = {
        "renderers.client": {"MalformedGenerateResponseError": Exception, "OverlongPromptError": Exception},
        "pydantic_config": {"BaseConfig": type("BaseConfig", (pydantic.BaseModel,), strict)},
        "openai_harmony": dict.fromkeys(_HARMONY),
    }
    for name, contents in stand_ins.items():
        module = types.ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.syspath_prepend(folder)
    return importlib.import_module("renderers")
