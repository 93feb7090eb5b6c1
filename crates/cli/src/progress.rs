//! Progress bars: drawn on a terminal, silent in a pipe.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output;

/// A bar over `total` bytes.
pub fn bytes(total: u64) -> ProgressBar {
    bar(total, "{wide_bar} {bytes:>11} / {total_bytes}  {bytes_per_sec:>12}  {eta:>4}  {msg:30!}")
}

/// A bar over `total` tokens.
pub fn tokens(total: u64) -> ProgressBar {
    bar(total, "{wide_bar} {pos:>8} / {len} tokens  {eta:>4}")
}

/// A bar over `total` questions.
pub fn questions(total: u64) -> ProgressBar {
    bar(total, "{wide_bar} {pos:>8} / {len} questions  {eta:>4}")
}

/// A bar over `total` repetitions, with what is measured.
pub fn repetitions(total: u64) -> ProgressBar {
    bar(total, "{wide_bar} {pos:>8} / {len} repetitions  {eta:>4}  {msg:30!}")
}

fn bar(total: u64, template: &str) -> ProgressBar {
    if !output::stderr_is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr()).with_style(style)
}
