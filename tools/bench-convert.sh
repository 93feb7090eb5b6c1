#!/usr/bin/env bash
# Measures `basert convert` on a synthetic checkpoint: peak memory, and speed against `cp` of the same files.
#
#   tools/bench-convert.sh [DIRECTORY]
#
# DIRECTORY (default: a new one under ${TMPDIR:-/tmp}) should be on the disk that is to be measured, with room for three
# times the checkpoint of 6.5 GB. Everything that is written there is deleted afterwards. LAYERS=n makes another size.
# Needs Rust 1.95 and Python 3 (no packages).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cargo build --release --manifest-path "$here/../Cargo.toml" -p basert
binary=${CARGO_TARGET_DIR:-$here/../target}/release/basert

directory=$(mktemp -d -p "${1:-${TMPDIR:-/tmp}}" basert-bench-XXXXXX)
trap 'rm -rf "$directory"' EXIT
python3 "$here/bench_convert.py" make "$directory" "${LAYERS:-16}"
python3 "$here/bench_convert.py" "$binary" "$directory" "${LAYERS:-16}"
