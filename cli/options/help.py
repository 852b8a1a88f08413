"""The help of a command: options in groups, defaults and types as a reader needs them."""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperCommand

# Options by the names of their parameters; those of none of the groups come first.
GROUPS: dict[str, frozenset[str]] = {
    "Input": frozenset(
        {"input_format", "map", "messages", "on", "on_error", "max_tokens", "truncate"}
        | {"chunk", "stride", "context"}
    ),
    "Template and tokenizer": frozenset(
        {
            "template",
            "template_kwargs",
            "tools",
            "add_generation_prompt",
            "verify",
            "tokenizer",
            "template_timeout",
            "template_characters",
            "template_time",
            "revision",
            "trust_remote_code",
        }
    ),
    "Engine": frozenset(
        {
            "engine",
            "top_k",
            "dtype",
            "temperature",
            "head_dtype",
            "engine_path",
            "tensor_parallel_size",
            "pipeline_parallel_size",
            "quantization",
            "batch_tokens",
            "sharing",
            "engine_arg",
            "url",
            "server_kind",
            "server_model",
            "concurrency",
            "max_length",
            "at",
            "exact",
            "teacher_model",
            "student_model",
        }
    ),
    "Processes": frozenset(
        {"executor", "replicas", "stall_timeout", "replica_memory", "ray_address", "tasks", "sbatch"}
        | {"print", "shard", "workers"}
    ),
    "Output": frozenset(
        {
            "out",
            "sort",
            "top",
            "worst",
            "worst_tokens",
            "form",
            "format",
            "wide",
            "details",
            "summary",
            "html",
            "html_max_mb",
            "dropped",
            "dry_run",
            "exact_plan",
            "tokens_per_s",
            "probe",
            "explain",
            "scratch",
            "help",
        }
    ),
}
_OWN = "Options"
# Fewer options are seen at once.
_UNGROUPED = 8
_DEFAULT_IN_BRACKETS = re.compile(r"\[default: \(([^()]*)\)")
_TYPE_OF_ARGUMENT = re.compile(r" <[^<>]*>$")


class GroupedCommand(TyperCommand):
    """A command whose help shows its options in groups, and that runs without libraries it has no use for."""

    def invoke(self, ctx: Any) -> Any:  # Any: typer brings its own click
        """Run the command."""
        from tokscore.rendering.libraries.unused import import_what_is_used

        import_what_is_used()
        return super().invoke(ctx)

    def format_options(self, ctx: Any, formatter: Any) -> None:  # Any: as above
        """Write arguments, then one section a group."""
        sections: dict[str, list[tuple[str, str]]] = {
            "Arguments": [],
            _OWN: [],
            **{name: [] for name in GROUPS},
        }
        params = self.get_params(ctx)
        is_grouped = sum(each.param_type_name == "option" for each in params) > _UNGROUPED
        for each in params:
            record = each.get_help_record(ctx)
            if record is None:
                continue
            name, text = record
            text = _DEFAULT_IN_BRACKETS.sub(r"[default: \1", text)
            if each.param_type_name == "argument":
                sections["Arguments"].append((_TYPE_OF_ARGUMENT.sub("", name), text))
            else:
                sections[group_of(each.name) if is_grouped else _OWN].append((name, text))
        for title, rows in sections.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def group_of(name: str) -> str:
    """The group of an option, by the name of its parameter."""
    return next((title for title, names in GROUPS.items() if name in names), _OWN)
