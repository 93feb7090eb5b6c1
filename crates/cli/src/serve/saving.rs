//! Prompts that outlive the server: written to a file when the model is given back.

use std::path::PathBuf;

use basert_engine::{Client, EngineError, PrefixStats, Request, Scheduler, Speculated};
use basert_server::Backend;

use crate::failure::Failure;
use crate::output;

/// A scheduler whose kept prompts go to a file at the end.
pub struct Kept {
    pub scheduler: Scheduler,
    pub file: PathBuf,
}

impl Backend for Kept {
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
        if let Err(error) = self.scheduler.engine().save_prefixes(&self.file) {
            output::report(&Failure::from_error(&error));
        }
    }
}
