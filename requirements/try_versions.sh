#!/usr/bin/env bash
# Run the tests of the engines with other versions of transformers (or vLLM) than the pinned ones.
#
#   bash requirements/try_versions.sh ENVIRONMENT PACKAGE [VERSION ...] [-- PYTEST-ARGUMENT ...]
#
# Each version gets an environment of its own under $TOKSCORE_CACHE/versions. It takes all else from ENVIRONMENT,
# so that only the package, and what it needs in other versions, is installed. Without versions, the lowest that
# pyproject.toml allows and the newest there is.
set -euo pipefail
cd "$(dirname "$0")/.."
base=$1 package=$2
shift 2
versions=()
while (($#)) && [ "$1" != -- ]; do
    versions+=("$1")
    shift
done
shift || true
arguments=("$@")
if ((!${#arguments[@]})); then
    arguments=(tests/scoring/engines tests/scoring/test_selfcheck.py -m "not slow and not vllm and not gpu")
fi
if ((!${#versions[@]})); then
    lowest=$(sed -n "s/.*\"${package%-cpu}>=\([0-9.]*\)\".*/\1/p" pyproject.toml | head -n 1)
    newest=$("$base/bin/python" -m pip index versions "$package" 2>/dev/null | sed -n '1s/.*(\(.*\)).*/\1/p')
    versions=("$lowest" "$newest")
fi
site=$("$base/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
failed=()
for version in "${versions[@]}"; do
    environment=${TOKSCORE_CACHE:-$HOME/.cache/tokscore}/versions/$package-$version
    if ! "$environment/bin/python" -c '' 2>/dev/null; then
        "$base/bin/python" -m venv --clear "$environment"
        inner=$("$environment/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
        # addsitedir, unlike a bare path, also follows the editable installs of the base.
        echo "import site; site.addsitedir('$site')" >"$inner/base.pth"
        "$environment/bin/python" -m pip install --quiet --disable-pip-version-check "$package==$version"
    fi
    echo "== $package $version"
    "$environment/bin/python" -m pytest -q "${arguments[@]}" || failed+=("$version")
done
if ((${#failed[@]})); then
    echo "failed with $package ${failed[*]}" >&2
    exit 1
fi
echo "all pass with $package ${versions[*]}"
