//! The `basert` command: arguments in, words out, no logic of its own.
//!
//! One module per command (`convert`, `export`, `profiles`, `verify`, `inspect`, `chat`, `complete`, `serve`, `eval`, `plan`,
//! `bench`, `profile`). `args` and `options` say what can be typed,
//! `output` is the only place that writes to the terminal, `failure` is how a command ends badly. Exit status: 0
//! when all is well, 1 on an error, 2 on wrong usage, 128 and the number of a signal that ended it (130 after ^C).

mod answer;
mod args;
mod bench;
mod bundle;
mod calibrate;
mod chat;
mod complete;
mod conversation;
mod convert;
mod eval;
mod export;
mod failure;
mod inspect;
mod interrupt;
mod kept;
mod locate;
mod options;
mod output;
mod place;
mod plan;
mod profile;
mod profiles;
mod progress;
mod reserved;
mod schedule;
mod selected;
mod serve;
mod session;
mod svg;
mod table;
mod units;
mod verify;

use std::process::ExitCode;

use args::{Cli, Command};

fn main() -> ExitCode {
    let command = Cli::from_command_line().command;
    let result = interrupt::report_file_size_limit().and_then(|()| match command {
        Command::Convert(args) => convert::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Profiles(args) => profiles::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Chat(args) => chat::run(&args),
        Command::Complete(args) => complete::run(&args),
        Command::Eval(args) => eval::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Profile(args) => profile::run(&args),
        Command::Serve(args) => serve::run(&args),
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::report(&failure);
            ExitCode::from(failure.exit_code())
        }
    }
}
