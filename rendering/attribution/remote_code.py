"""Code that comes with a model: never run unless the user says so."""

from __future__ import annotations


def is_about_code(error: Exception) -> bool:
    """Whether transformers or vLLM refused to run code of a model's folder."""
    return "trust_remote_code" in str(error)


def needs_code(name: str) -> str:
    """The message for a model that needs code of its own."""
    return (
        f"{name} needs Python code that comes with it, which is not run.\n"
        "Read that code, and give `trust_remote_code=True` if you trust it."
    )
