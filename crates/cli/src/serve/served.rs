//! A loaded model: its prompts may outlive it in a file, and its memory is given back with it.

use std::path::PathBuf;

use basert_engine::{Client, EngineError, PrefixStats, Request, Scheduler, Speculated};
use basert_server::Backend;

use crate::failure::Failure;
use crate::output;

use super::budget::Share;

/// A scheduler with what belongs to its model.
pub struct Served {
    pub scheduler: Scheduler,
    /// Where its kept prompts go at the end.
    pub prompts: Option<PathBuf>,
    /// What it takes of the server's memory; behind the scheduler, so that it is given back after that.
    pub _share: Share,
}

impl Backend for Served {
    fn submit(&mut self, request: Request, client: Box<dyn Client>) -> Result<(), EngineError> {
        self.scheduler.submit(request, client)
    }

    fn step(&mut self) {
        self.scheduler.step();
    }

    fn has_work(&self) -> bool {
        self.scheduler.has_work()
    }

    fn prefix_stats(&self) -> Option<PrefixStats> {
        self.scheduler.engine().prefix_stats()
    }

    fn take_speculated(&mut self) -> Speculated {
        self.scheduler.take_speculated()
    }

    fn save(&mut self) {
        let Some(file) = &self.prompts else { return };
        if let Err(error) = self.scheduler.engine().save_prefixes(file) {
            output::report(&Failure::from_error(&error));
        }
    }
}
