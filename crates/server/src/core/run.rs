//! The answers of one request, followed together.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use basert_engine::{News, Request};

use super::{Answer, Event, Reading, Scored};
use crate::error::ApiError;
use crate::slots::{Heard, Wants};
use crate::worker::{Submitted, Worker};

/// One answer that is wanted.
#[derive(Debug)]
pub(crate) struct Job {
    /// For the engine.
    pub request: Request,
    /// What else is asked of the engine.
    pub wants: Wants,
    /// How its tokens are read.
    pub reading: Reading,
    /// Which of the request's prompts it answers.
    pub prompt: usize,
}

/// Tokens that a request took, and the time.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Usage {
    /// Every prompt counts once, however many answers it gets.
    pub prompt: usize,
    /// Tokens of prompts that were kept from earlier requests.
    pub cached: usize,
    /// Tokens of all answers.
    pub completion: usize,
    /// Those of them that were thinking.
    pub reasoning: usize,
    /// From the start to the first token.
    pub prefill: Duration,
    /// From the first token to the last.
    pub decode: Duration,
}

/// Answers on their way. Dropping them ends them.
#[derive(Debug)]
pub(crate) struct Run {
    choices: Vec<Choice>,
    ready: VecDeque<(usize, Event)>,
    usage: Usage,
    started: Instant,
    first_token: Option<Instant>,
    deadline: Option<(Duration, tokio::time::Instant)>,
}

#[derive(Debug)]
struct Choice {
    /// Taken when the answer is complete.
    running: Option<(Answer, Submitted)>,
    /// The first answer to a prompt, until it is known how much of the prompt was kept.
    counts_cached: bool,
}

impl Run {
    /// Hands the jobs to an engine.
    ///
    /// # Errors
    /// If the engine has stopped.
    pub fn start(worker: &Worker, jobs: Vec<Job>, timeout: Option<Duration>) -> Result<Run, ApiError> {
        let mut usage = Usage::default();
        let mut prompts = 0;
        let mut choices = Vec::with_capacity(jobs.len());
        for Job { request, wants, reading, prompt } in jobs {
            let is_first = prompt >= prompts;
            if is_first {
                prompts = prompt + 1;
                usage.prompt += request.prompt.len();
            }
            let submitted = worker.submit(request, wants)?;
            choices
                .push(Choice { running: Some((Answer::new(reading), submitted)), counts_cached: is_first });
        }
        let deadline = timeout.map(|timeout| (timeout, tokio::time::Instant::now() + timeout));
        let (ready, started, first_token) = (VecDeque::new(), Instant::now(), None);
        Ok(Run { choices, ready, usage, started, first_token, deadline })
    }

    /// The next event, with the index of its answer; `None` when all answers are complete.
    ///
    /// # Errors
    /// What the engine says, or that time is over. Nothing comes after it.
    pub async fn next(&mut self) -> Option<Result<(usize, Event), ApiError>> {
        let deadline = self.deadline;
        let next = poll_fn(|cx| self.poll(cx));
        let Some((timeout, at)) = deadline else { return next.await };
        match tokio::time::timeout_at(at, next).await {
            Ok(event) => event,
            Err(_) => {
                self.choices.clear();
                Some(Err(ApiError::timed_out(timeout.as_secs())))
            }
        }
    }

    /// What was taken so far.
    pub fn usage(&self) -> Usage {
        let mut usage = self.usage;
        for (answer, _) in self.choices.iter().filter_map(|choice| choice.running.as_ref()) {
            usage.completion += answer.tokens();
            usage.reasoning += answer.reasoning_tokens();
        }
        let first = self.first_token.unwrap_or_else(Instant::now);
        Usage { prefill: first - self.started, decode: first.elapsed(), ..usage }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<(usize, Event), ApiError>>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            let mut heard = false;
            for index in 0..self.choices.len() {
                let Some((_, submitted)) = &mut self.choices[index].running else { continue };
                let Poll::Ready(news) = submitted.news.poll_recv(cx) else { continue };
                heard = true;
                if let Err(error) = self.hear(index, news) {
                    self.choices.clear();
                    return Poll::Ready(Some(Err(error)));
                }
            }
            if self.ready.is_empty() && self.choices.iter().all(|choice| choice.running.is_none()) {
                return Poll::Ready(None);
            }
            if !heard {
                return Poll::Pending;
            }
        }
    }

    fn hear(&mut self, index: usize, heard: Option<Heard>) -> Result<(), ApiError> {
        let Some((answer, submitted)) = &mut self.choices[index].running else { return Ok(()) };
        let news = match heard {
            Some(Heard::News(news)) => Some(news),
            Some(Heard::Prompt(tokens)) => {
                answer.echoed(tokens.into_iter().map(Scored::from));
                return Ok(());
            }
            None => None,
        };
        let events = match news {
            None => return Err(ApiError::internal("the engine has stopped; restart the server")),
            Some(News::Failed(error)) => return Err(ApiError::from(&*error)),
            Some(News::Prefilled { done, cached, total }) => {
                if std::mem::take(&mut self.choices[index].counts_cached) {
                    self.usage.cached += cached;
                }
                vec![Event::Progress { done, total }]
            }
            Some(News::Token(token)) => {
                self.first_token.get_or_insert_with(Instant::now);
                let mut events = answer.token(token);
                if answer.is_over() {
                    submitted.slot.completes();
                    events.extend(self.end(index, basert_engine::Finish::Stop));
                }
                events
            }
            Some(News::Finished(finish)) => self.end(index, finish),
        };
        self.ready.extend(events.into_iter().map(|event| (index, event)));
        Ok(())
    }

    fn end(&mut self, index: usize, finish: basert_engine::Finish) -> Vec<Event> {
        let Some((answer, _)) = self.choices[index].running.take() else { return Vec::new() };
        self.usage.completion += answer.tokens();
        self.usage.reasoning += answer.reasoning_tokens();
        answer.finish(finish)
    }
}
