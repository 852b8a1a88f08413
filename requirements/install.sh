#!/usr/bin/env bash
# Install into a virtual environment, unless the same was installed before.
#
#   PYTHON=python3 requirements/install.sh ENVIRONMENT NAME PIP-ARGUMENT...
#
# pip's messages go to ENVIRONMENT/NAME.log; a line every 15 s says that it is still at work.
set -euo pipefail
cd "$(dirname "$0")/.."
environment=$1 name=$2
shift 2
python=${PYTHON:-python3}
stamp=$environment/$name.stamp
log=$environment/$name.log
started=$SECONDS

if ! "$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'; then
    echo "$python is not Python 3.11, 3.12 or 3.13. Name one that is: make PYTHON=python3.12 ..." >&2
    exit 1
fi

# The place counts too: an editable install and the scripts in bin/ hold the path of this checkout.
key=$({ pwd; "$python" --version; echo "$@"; cat pyproject.toml requirements/*; } | cksum)
if [ "$(cat "$stamp" 2>/dev/null)" = "$key" ] && "$environment/bin/python" -c ''; then
    echo "$environment has what $name needs"
    exit 0
fi

echo "installing what $name needs into $environment (log: $log)"
if ! "$environment/bin/python" -m pip --version >/dev/null 2>&1; then
    "$python" -m venv --clear "$environment"
fi
rm -f "$stamp"
pip_install=("$environment/bin/python" -m pip install --disable-pip-version-check --progress-bar off)
"${pip_install[@]}" "$@" >"$log" 2>&1 </dev/null &
pip=$!
trap 'kill "$pip" 2>/dev/null' INT TERM
next=15
while kill -0 "$pip" 2>/dev/null; do
    sleep 1
    if ((SECONDS - started >= next)); then
        printf '  %3d s: %.90s\n' "$((SECONDS - started))" "$(grep -v WARNING "$log" | tail -n 1 | sed 's/^ *//')"
        next=$((next + 15))
    fi
done
if ! wait "$pip"; then
    echo "pip failed; the end of $log:" >&2
    tail -n 30 "$log" >&2
    exit 1
fi
echo "$key" >"$stamp"
echo "installed in $((SECONDS - started)) s"
