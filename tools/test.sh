#!/usr/bin/env bash
# Runs every test of the workspace: unit and integration tests with cargo-nextest where it is installed and with
# `cargo test` where it is not, then the examples in the documentation.
#
#   tools/test.sh [-p CRATE]...        all crates by default; arguments go to cargo as they are
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if ! command -v cargo > /dev/null; then
    echo "test.sh: cargo is not on the PATH; install Rust 1.95 or newer (https://rustup.rs)" >&2
    exit 1
fi

scope=("$@")
if [ ${#scope[@]} -eq 0 ]; then
    scope=(--workspace)
fi

cargo test --locked --doc "${scope[@]}"
# Last, so that the output ends with the runner's summary.
if cargo nextest --version > /dev/null 2>&1; then
    cargo nextest run --locked "${scope[@]}"
else
    cargo test --locked --tests "${scope[@]}"
fi
