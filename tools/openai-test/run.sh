#!/usr/bin/env bash
# Drives `basert serve` with OpenAI's Python client: builds `basert`, keeps the client in target/openai-test, runs test_client.py.
#
#   tools/openai-test/run.sh [TEST]...       names of tests as Python's unittest takes them; all by default
#
# Needs Rust 1.95 and Python 3.10 or newer with venv and pip. BASERT=/path/to/basert takes another binary, MODEL=/path another model.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

target=${CARGO_TARGET_DIR:-target}
client=$target/openai-test
wanted=tools/openai-test/requirements.txt
if [ -z "${BASERT:-}" ]; then
    cargo build --release --locked --quiet --package basert
    BASERT=$target/release/basert
fi
if ! cmp --silent "$wanted" "$client/requirements.txt"; then
    rm -rf "$client"
    python3 -m venv "$client"
    "$client/bin/python" -m pip install --quiet --disable-pip-version-check --requirement "$wanted"
    # Last, so that a broken installation is made again.
    cp "$wanted" "$client/requirements.txt"
fi
export BASERT MODEL=${MODEL:-models/demo/demo.base} PYTHONPATH=tools/openai-test PYTHONDONTWRITEBYTECODE=1
exec "$client/bin/python" -m unittest "${@:-test_client}"
