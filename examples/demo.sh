#!/usr/bin/env bash
# The chain on a real model, as `make demo` runs it: render, score with two models, compare.
#
#   examples/demo.sh FOLDER-OF-THE-TWO-MODELS
set -euo pipefail
cd "$(dirname "$0")/.."
teacher=$1/smollm2-135m-instruct
student=$1/smollm2-135m-student
inputs=(examples/conversations.jsonl examples/chatml_tools.jinja examples/make_models.py pyproject.toml)
PATH=$PWD/.venv/bin:$PATH
started=$SECONDS

# tokscore refuses to mix two runs in one directory, so results of other inputs make room first.
key=$(cksum "${inputs[@]}")
if [ -d demo-output ] && [ "$(cat demo-output/inputs.cksum 2>/dev/null)" != "$key" ]; then
    echo "demo-output/ was made from other inputs; starting again"
    rm -rf demo-output
fi
mkdir -p demo-output
echo "$key" >demo-output/inputs.cksum

run() {
    printf '\n[%3d s] $ %s\n' "$((SECONDS - started))" "$*"
    "$@"
}
run tokscore render examples/conversations.jsonl -m "$teacher" --template examples/chatml_tools.jinja \
    -o demo-output/tokens
run tokscore logprobs demo-output/tokens -m "$teacher" -o demo-output/teacher
run tokscore logprobs demo-output/tokens -m "$student" -o demo-output/student
run tokscore diff demo-output/teacher demo-output/student --exact --teacher-model "$teacher" --student-model "$student"

printf '\n[%3d s] done. The files:\n' "$((SECONDS - started))"
echo "  demo-output/tokens    every token with its message, role and field"
echo "  demo-output/teacher   the same with log-probabilities of $teacher"
echo "  demo-output/student   and of $student, the same weights rounded to int4"
echo "Look inside: .venv/bin/python -c 'import polars; print(polars.read_parquet(\"demo-output/teacher/scores/*.parquet\"))'"
