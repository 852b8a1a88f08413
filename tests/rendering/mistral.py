"""Mistral's chat templates, made by Mistral's own generator.

The package itself needs more than a test should install; the generator needs three enums of it.
"""

from __future__ import annotations

import ast
import itertools
import types
import warnings
from enum import StrEnum, auto
from pathlib import Path
from typing import Any


def mistral_templates(folder: Path) -> dict[str, str]:
    """Template sources by tokenizer version and kind, such as `mistral_v3_spm`."""
    generator = _load_generator(folder)
    sources = {}
    for version, spm, thinking in itertools.product(generator.TokenizerVersion, (False, True), (False, True)):
        settings: dict[str, Any] = {"spm": spm, "thinking_support": thinking}
        if version.supports_model_settings:
            settings |= {"reasoning_effort_values": ("none", "high"), "reasoning_effort_default": "none"}
        try:
            config = generator.TemplateConfig(version, use_special_token_variables=True, **settings)
        except ValueError:  # no such model
            continue
        name = f"mistral_{version}" + "_spm" * spm + "_thinking" * thinking
        sources[name] = generator.build_chat_template(config)
    return sources


def _load_generator(folder: Path) -> Any:
    module = types.ModuleType("mistral_template_generator")
    vars(module).update(StrEnum=StrEnum, auto=auto, warnings=warnings)
    wanted = {"SpecialTokens", "TokenizerVersion", "ReasoningEffort"}
    for name in ("base.py", "request.py"):
        body = ast.parse((folder / name).read_text()).body
        classes = [node for node in body if isinstance(node, ast.ClassDef) and node.name in wanted]
        exec(compile(ast.Module(list(classes), []), name, "exec", dont_inherit=True), vars(module))
    tree = ast.parse((folder / "template_generator.py").read_text())
    tree.body = [
        node
        for node in tree.body
        if not (isinstance(node, ast.ImportFrom) and str(node.module).startswith("mistral_common"))
    ]
    exec(compile(tree, "template_generator.py", "exec", dont_inherit=True), vars(module))
    return module
