//! End to end through the real binary, on the fixture models: what is typed, what is said, what is left on the disk.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

#[macro_use]
mod common;

mod allocated;
mod bad_input;
mod bench;
mod chat;
mod complete;
mod convert;
mod demo;
mod eval;
mod export;
mod fit;
mod help;
mod hostile;
mod measures;
mod methods;
mod plan;
mod profile;
mod serve;
mod synthetic;
mod unfinished;
mod verify;
