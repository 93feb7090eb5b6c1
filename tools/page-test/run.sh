#!/usr/bin/env bash
# Tests the chat page in Chromium: against the scripted server, then against the real binary with the demo model.
#
#   tools/page-test/run.sh
#
# Needs Rust 1.95, Node 20 and Chromium: $CHROMIUM, or one on the PATH; root on Debian gets one by apt-get. Where there is none,
# it says so and passes, or fails with BASERT_REQUIRE_FIXTURES=1, as in .ci/run. A $CHROMIUM that is no program always fails.
# BASERT=/path/to/basert takes another binary.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

say() { printf 'page-test: %s\n' "$*" >&2; }

without() {
    say "NOT TESTED: $*"
    [ "${BASERT_REQUIRE_FIXTURES:-0}" != 1 ] || exit 1
    exit 0
}

browser() {
    command -v chromium || command -v chromium-browser || command -v google-chrome
}

command -v npm > /dev/null || without "there is no Node with npm"
if [ -n "${CHROMIUM:-}" ]; then
    [ -x "$CHROMIUM" ] || { say "CHROMIUM=$CHROMIUM is no program"; exit 1; }
elif ! browser > /dev/null && [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
    say "installing chromium"
    { apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium; } > /dev/null || say "apt-get has failed"
fi
CHROMIUM=${CHROMIUM:-$(browser || true)}
[ -n "$CHROMIUM" ] || without "there is no Chromium; install one, or say where it is: CHROMIUM=/path/to/chrome"
export CHROMIUM

if [ -z "${BASERT:-}" ]; then
    cargo build --release --locked --quiet --package basert
    BASERT=${CARGO_TARGET_DIR:-target}/release/basert
fi
npm --prefix tools/page-test ci --silent
say "scripted answers"
npm --prefix tools/page-test test --silent

folder=$(mktemp -d)
"$BASERT" serve models/demo/demo.base --port 0 --log-file "$folder/log" 2> "$folder/said" &
server=$!
trap 'kill "$server" 2> /dev/null; rm -rf "$folder"' EXIT
until grep -q '^listening on ' "$folder/said"; do
    kill -0 "$server" 2> /dev/null || { cat "$folder/said" >&2; exit 1; }
    sleep 0.1
done
BASE_URL=$(sed -n 's/^listening on //p' "$folder/said")
export BASE_URL
say "the demo model at $BASE_URL"
npm --prefix tools/page-test test --silent
