//! The container: what is written and read, and what hostile files do not do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

mod common;
mod files;
mod hostile;
mod large;
mod output;
mod upstream;
