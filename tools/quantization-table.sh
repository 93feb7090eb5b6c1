#!/usr/bin/env bash
# Measures every quantisation method at every width on SmolLM2-135M-Instruct and prints the table of docs/quantization.md.
#
#   tools/quantization-table.sh [BASERT] [WIDTH]...        default: target/release/basert and 2 3 4 5 6 8
#
# The model must be in models/ (tools/smollm2.sh puts it there). Its own weights have 4 bits, so widths from 4 on have
# groups of 64 or 128, to make it quantise them again. The reference is the same file with every weight as f32.
# Calibration: tools/data/darwin.txt (Charles Darwin, On the Origin of Species, 1859, introduction and last paragraph).
# Evaluation: tools/data/alice.txt (Lewis Carroll, Alice's Adventures in Wonderland, 1865, first chapter). Both are in the
# public domain.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

basert=${1:-${CARGO_TARGET_DIR:-target}/release/basert}
[ $# -gt 0 ] && shift
widths=("$@")
[ ${#widths[@]} -eq 0 ] && widths=(2 3 4 5 6 8)
gguf=models/SmolLM2-135M-Instruct.Q4_1.gguf
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

convert() { "$basert" convert "$gguf" --no-check --allow-quant-from-quant --force --json "$@"; }
field() { python3 -c 'import json, sys; d = json.load(sys.stdin); print(eval(sys.argv[1], {"d": d}))' "$1"; }

convert --target f32 --output "$work/reference.base" > /dev/null
convert --target q4 --group 64 --output "$work/model.base" --calibration tools/data/darwin.txt \
    --save-importance "$work/importance" > /dev/null

echo '| bits, group | method | mean KL, nats | same likeliest token | perplexity |'
echo '|---|---|---|---|---|'
for width in "${widths[@]}"; do
    case $width in 2 | 3) group=32 ;; 8) group=128 ;; *) group=64 ;; esac
    for method in rtn mse mse+importance awq; do
        options=(--target "q$width" --group "$group" --method "${method%+importance}")
        case $method in mse+importance | awq) options+=(--importance "$work/importance") ;; esac
        convert "${options[@]}" --output "$work/model.base" > /dev/null
        "$basert" eval "$work/model.base" --against "$work/reference.base" --text-file tools/data/alice.txt \
            --kv-type f32 --json |
            field "f'| $width, $group | $method | {d[\"against\"][\"kl\"]:.4f} ± {d[\"against\"][\"kl_standard_error\"]:.4f} | {100 * d[\"against\"][\"top1_agreement\"]:.1f} % | {d[\"perplexity\"]:.2f} |'"
    done
done
