"""The places that tokscore takes hold of in vLLM, held against the sources of every release.

    python benchmarks/vllm_versions.py [--least 0.24] [--sources FOLDER] [--write docs/vllm_versions.md]

They are compared by name and signature. Wheels are downloaded by pip, read without installing them, and
deleted; the files that are looked at stay in the folder of sources. Ends with 1 where a release lacks a place
that the fused path needs.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

LEAST = "0.24"
V1 = "vllm/v1/worker/gpu_model_runner.py"
V2 = "vllm/v1/worker/gpu/model_runner.py"
V2_ROWS = "vllm/v1/worker/gpu/sample/prompt_logprob.py"
CONFIG = "vllm/config/vllm.py"


class Seam(NamedTuple):
    """A name that tokscore takes hold of.

    Attributes:
        part: What needs it.
        file: Where it is.
        name: Class and member, or what a class assigns to `self` or declares.
        arguments: Of a function, those that tokscore passes or is passed, in order; None where it is none.
    """

    part: str
    file: str
    name: str
    arguments: tuple[str, ...] | None = None


SEAMS = [
    Seam(
        "V1",
        V1,
        "GPUModelRunner._get_prompt_logprobs_dict",
        ("self", "hidden_states", "num_scheduled_tokens"),
    ),
    *(
        Seam("V1", V1, f"GPUModelRunner.{name}")
        for name in ("num_prompt_logprobs", "requests", "query_start_loc")
    ),
    Seam("V1", V1, "GPUModelRunner.input_batch"),
    Seam("V2", V2, "GPUModelRunner.prompt_logprobs_worker"),
    Seam("V2", V2_ROWS, "PromptLogprobsWorker.add_request", ("self", "req_id", "req_idx", "sampling_params")),
    Seam("V2", V2_ROWS, "PromptLogprobsWorker.remove_request", ("self", "req_id")),
    Seam("V2", V2_ROWS, "PromptLogprobsWorker.uses_prompt_logprobs"),
    Seam(
        "V2",
        V2_ROWS,
        "PromptLogprobsWorker.compute_prompt_logprobs",
        (
            "self",
            "logits_fn",
            "hidden_states",
            "input_batch",
            "all_token_ids",
            "num_computed_tokens",
            "prompt_lens",
        ),
    ),
    *(
        Seam("V2", "vllm/v1/worker/gpu/input_batch.py", f"InputBatch.{name}")
        for name in (
            "req_ids",
            "idx_mapping_np",
            "num_computed_prefill_tokens_np",
            "num_scheduled_tokens",
            "query_start_loc_np",
        )
    ),
    Seam(
        "float32 head",
        "vllm/model_executor/layers/logits_processor.py",
        "LogitsProcessor._get_logits",
        ("self", "hidden_states", "lm_head", "embedding_bias"),
    ),
    *(
        Seam("float32 head", "vllm/model_executor/layers/logits_processor.py", f"LogitsProcessor.{name}")
        for name in ("_gather_logits", "logits_as_input", "org_vocab_size")
    ),
    Seam(
        "tensors",
        "vllm/v1/engine/logprobs.py",
        "LogprobsProcessor.from_new_request",
        ("cls", "tokenizer", "request"),
    ),
    Seam(
        "tensors",
        "vllm/v1/engine/logprobs.py",
        "LogprobsProcessor._update_prompt_logprobs",
        ("self", "prompt_logprobs_tensors"),
    ),
    *(
        Seam("tensors", "vllm/v1/outputs.py", f"LogprobsTensors.{name}")
        for name in ("logprob_token_ids", "logprobs", "selected_token_ranks")
    ),
    Seam("flat", "vllm/sampling_params.py", "SamplingParams.flat_logprobs"),
    Seam("flat", "vllm/sampling_params.py", "SamplingParams.prompt_logprobs"),
    Seam("sharing", "vllm/sampling_params.py", "SamplingParams.skip_reading_prefix_cache"),
    Seam("sharing", "vllm/v1/request.py", "Request.cache_salt"),
    Seam("sharing", "vllm/v1/request.py", "Request.get_skip_reading_prefix_cache", ("self",)),
    Seam(
        "sharing",
        "vllm/v1/core/kv_cache_manager.py",
        "KVCacheManager.get_computed_blocks",
        ("self", "request"),
    ),
    Seam("all", "vllm/sampling_params.py", "SamplingParams.extra_args"),
    Seam("all", "vllm/config/parallel.py", "ParallelConfig.worker_extension_cls"),
]
PARTS = ("V1", "V2", "float32 head", "tensors", "flat", "sharing")
FILES = sorted({seam.file for seam in SEAMS} | {CONFIG})


class Release(NamedTuple):
    """One version of vLLM.

    Attributes:
        version: Its number.
        missing: What each part lacks.
        default: The model runner that it takes on CUDA where nothing else is asked for.
    """

    version: str
    missing: Mapping[str, Sequence[str]]
    default: str

    @property
    def path(self) -> str:
        """The first path of tokscore that it has the places for; none where it has none."""
        if self.missing["all"]:
            return "none"
        has_runner = not self.missing["V1"] and not self.missing["V2"]
        if has_runner and not self.missing["tensors"]:
            return "fused"
        return next((part for part in ("tensors", "flat") if not self.missing[part]), "none")


def main() -> int:
    """Print or write the table; 1 where a release has no fused path on either runner."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cache = Path(os.environ.get("TOKSCORE_CACHE") or Path.home() / ".cache" / "tokscore")
    parser.add_argument("--least", default=LEAST, help="oldest version that is looked at")
    parser.add_argument("--sources", type=Path, default=cache / "vllm-sources")
    parser.add_argument("--write", type=Path, help="page to write; printed otherwise")
    arguments = parser.parse_args()
    releases = []
    for version in versions(arguments.least):
        folder = arguments.sources / version
        if not folder.is_dir():
            print(f"vllm {version}: downloading", file=sys.stderr, flush=True)
            fetch(version, folder)
        releases.append(read(version, folder))
    page = table(releases)
    if arguments.write is None:
        print(page)
    else:
        arguments.write.write_text(page, encoding="utf-8")
    for release in releases:
        for part, names in release.missing.items():
            for name in names:
                print(f"vllm {release.version} lacks {name} ({part})", file=sys.stderr)
    return int(any(release.path != "fused" for release in releases))


def versions(least: str) -> list[str]:
    """The releases on the package index from one on, oldest first."""
    command = [sys.executable, "-m", "pip", "index", "versions", "vllm"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = re.search(r"^Available versions: (.+)$", text, re.MULTILINE)
    if found is None:
        raise SystemExit("pip names no versions of vllm")
    return sorted((each for each in found[1].split(", ") if key(each) >= key(least)), key=key)


def key(version: str) -> tuple[int, ...]:
    """The numbers of a version, for comparing; 1.0.post1 comes behind 1.0."""
    return tuple(int(number) for number in re.findall(r"\d+", version))


def fetch(version: str, folder: Path) -> None:
    """Put the files of a release that are looked at into a folder."""
    with tempfile.TemporaryDirectory() as name:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*command, "--dest", name, f"vllm=={version}"], check=True)
        [wheel] = Path(name).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            there = set(archive.namelist())
            for file in FILES:
                if file in there:
                    archive.extract(file, folder)


def read(version: str, folder: Path) -> Release:
    """What a release has, from its sources."""
    missing: dict[str, list[str]] = {part: [] for part in ("all", *PARTS)}
    trees: dict[str, ast.Module] = {}
    for file in FILES:
        path = folder / file
        trees[file] = ast.parse(path.read_text(encoding="utf-8")) if path.is_file() else ast.parse("")
    for seam in SEAMS:
        fault = fault_of(seam, trees[seam.file])
        if fault is not None:
            missing[seam.part].append(fault)
    return Release(version, missing, default_runner(trees[CONFIG]))


def fault_of(seam: Seam, tree: ast.Module) -> str | None:
    """What is not as it is taken for; None where all is."""
    class_name, member = seam.name.split(".")
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            if seam.arguments is None:
                return None if member in members(node) else seam.name
            function = next(
                (each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == member),
                None,
            )
            if function is None:
                return seam.name
            found = tuple(each.arg for each in function.args.args)
            n = len(seam.arguments)
            n_without_default = len(found) - len(function.args.defaults)
            is_called_so = found[:n] == seam.arguments and n_without_default <= n
            return None if is_called_so else f"{seam.name}{seam.arguments}, it takes {found}"
    return seam.name


def members(node: ast.ClassDef) -> Iterator[str]:
    """Names of functions and fields of a class, and what its functions assign to `self`."""
    for each in node.body:
        if isinstance(each, ast.FunctionDef):
            yield each.name
        elif isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            yield each.target.id
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
            yield from [inner.attr] if ast.unparse(inner.value) == "self" else []


def default_runner(tree: ast.Module) -> str:
    """The runner that `VllmConfig.use_v2_model_runner` comes to without VLLM_USE_V2_MODEL_RUNNER."""
    function = next(
        (
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef) and node.name == "use_v2_model_runner"
        ),
        None,
    )
    if function is None:
        return "V1"
    if "_is_default_v2_model_runner_model" not in ast.unparse(function):
        return "V2"
    for node in tree.body:
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if (
            "DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES" in ast.unparse(node).partition("=")[0]
            and value is not None
        ):
            names = {each.value for each in ast.walk(value) if isinstance(each, ast.Constant)}
            return f"V2 for {len(names)} architectures, V1 for others"
    return "V2 for some architectures"


def table(releases: Sequence[Release]) -> str:
    """The page."""
    lines = [
        "# Versions of vLLM",
        "",
        "The places that the `vllm` engine takes hold of, held against the sources of every release, by name",
        "and signature (`python benchmarks/vllm_versions.py --write docs/vllm_versions.md`). Whether they do",
        "what they are taken for is tested at start, where they run ([scoring.md](scoring.md)).",
        "",
        "- V1, V2: the model runner in which the fused path makes the rows of prompts.",
        "- runner: the one that vLLM takes on CUDA with Triton where nothing asks for the other.",
        "- float32 head: logits in float32 from 16-bit weights. sharing: branches read the prefix cache.",
        "- path: the first of fused, tensors and flat for which everything is there.",
        "",
        "| vLLM | path | runner | V1 | V2 | float32 head | tensors | flat | sharing |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for release in reversed(releases):
        cells = ["no" if release.missing[part] else "yes" for part in PARTS]
        lines.append(f"| {release.version} | {release.path} | {release.default} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.exit(main())
