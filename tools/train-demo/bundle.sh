#!/usr/bin/env bash
# Makes models/demo of a finished training run: the bundle, what it is asked, the curves, the evaluation.
#
#   tools/train-demo/bundle.sh target/demo [PYTHON] [BASERT]
#
# PYTHON must have requirements.txt installed (default: python3); BASERT defaults to target/release/basert.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

run=$1
python=${2:-python3}
basert=${3:-${CARGO_TARGET_DIR:-target}/release/basert}
demo=models/demo
checkpoint=$(mktemp -d)
trap 'rm -rf "$checkpoint"' EXIT

mkdir -p "$demo/evaluation"
"$python" tools/train-demo/export.py "$run" "$checkpoint/demo"
"$basert" convert "$checkpoint/demo" --target q8 --group 32 --method mse --output "$demo/demo.base" --force
"$python" tools/train-demo/questions.py "$demo/evaluation"
"$python" tools/train-demo/curves.py "$run" "$demo/curves.svg"
"$python" tools/train-demo/evaluate.py "$run" --count 100 --json "$demo/evaluation/training.json"
"$basert" convert "$checkpoint/demo" --target f32 --output "$checkpoint/f32.base"
"$basert" eval "$demo/demo.base" --against "$checkpoint/f32.base" --text-file "$demo/evaluation/text.txt" --window 1024 --kv-type f32
"$basert" eval "$demo/demo.base" --recall --lengths 512,1024,2048,3072 \
    --choices "$demo/evaluation/choices.jsonl" --tool-calls "$demo/evaluation/tool-calls.jsonl"
