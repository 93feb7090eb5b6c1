//! The answers of one request, followed together.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use basert_engine::{Finish, News, Request};

use super::{Answer, Event, Reading, Scored};
use crate::error::ApiError;
use crate::slots::{Heard, Wants};
use crate::worker::{Entrance, Submitted, Worker};

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
    entrance: Entrance,
    choices: Vec<Choice>,
    ready: VecDeque<(usize, Event)>,
    usage: Usage,
    started: Instant,
    /// When the engine made the first token, and the latest.
    tokens: Option<(Instant, Instant)>,
    deadline: Option<(Duration, tokio::time::Instant)>,
}

#[derive(Debug)]
struct Choice {
    /// Which prompt it answers.
    prompt: usize,
    stage: Stage,
    /// The first answer to a prompt, until it is known how much of the prompt was kept.
    counts_cached: bool,
}

#[derive(Debug)]
enum Stage {
    /// Waits for the first answer to its prompt, which reads the prompt for all.
    Held(Box<Job>),
    Running(Box<Answer>, Submitted),
    Complete,
}

impl Choice {
    fn submit(&mut self, job: Job, entrance: &Entrance) -> Result<(), ApiError> {
        let Job { request, wants, reading, .. } = job;
        let submitted = entrance.submit(request, wants)?;
        self.stage = Stage::Running(Box::new(Answer::new(reading)), submitted);
        Ok(())
    }
}

impl Run {
    /// Hands the jobs to an engine.
    ///
    /// # Errors
    /// If the engine has stopped.
    pub fn start(worker: &Worker, jobs: Vec<Job>, timeout: Option<Duration>) -> Result<Run, ApiError> {
        let entrance = worker.entrance().clone();
        // Whole pages are kept.
        let page = worker.prefix_stats().map_or(usize::MAX, |stats| stats.page_tokens);
        let mut usage = Usage::default();
        let mut prompts = 0;
        let mut choices = Vec::with_capacity(jobs.len());
        for job in jobs {
            let (prompt, tokens) = (job.prompt, job.request.prompt.len());
            let is_first = prompt >= prompts;
            if is_first {
                prompts = prompt + 1;
                usage.prompt += tokens;
            }
            let mut choice = Choice { prompt, stage: Stage::Complete, counts_cached: is_first };
            if is_first || tokens <= page || job.wants.prompt.is_some() {
                choice.submit(job, &entrance)?;
            } else {
                choice.stage = Stage::Held(Box::new(job));
            }
            choices.push(choice);
        }
        let deadline = timeout.map(|timeout| (timeout, tokio::time::Instant::now() + timeout));
        let (ready, started, tokens) = (VecDeque::new(), Instant::now(), None);
        Ok(Run { entrance, choices, ready, usage, started, tokens, deadline })
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
        for choice in &self.choices {
            let Stage::Running(answer, _) = &choice.stage else { continue };
            usage.completion += answer.tokens();
            usage.reasoning += answer.reasoning_tokens();
        }
        let now = Instant::now();
        let (first, latest) = self.tokens.unwrap_or((now, now));
        Usage { prefill: first - self.started, decode: latest - first, ..usage }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<(usize, Event), ApiError>>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            let mut heard = false;
            for index in 0..self.choices.len() {
                let Stage::Running(_, submitted) = &mut self.choices[index].stage else { continue };
                let Poll::Ready(news) = submitted.news.poll_recv(cx) else { continue };
                heard = true;
                if let Err(error) = self.hear(index, news) {
                    self.choices.clear();
                    return Poll::Ready(Some(Err(error)));
                }
            }
            let is_complete = |choice: &Choice| matches!(choice.stage, Stage::Complete);
            if self.ready.is_empty() && self.choices.iter().all(is_complete) {
                return Poll::Ready(None);
            }
            if !heard {
                return Poll::Pending;
            }
        }
    }

    fn hear(&mut self, index: usize, heard: Option<Heard>) -> Result<(), ApiError> {
        let Stage::Running(answer, submitted) = &mut self.choices[index].stage else { return Ok(()) };
        let (news, at) = match heard {
            Some(Heard::News(news, at)) => (news, at),
            Some(Heard::Beside(tokens)) => {
                answer.beside(tokens.into_iter().map(Scored::from));
                return Ok(());
            }
            None => return Err(ApiError::stopped()),
        };
        let events = match news {
            News::Failed(error) => return Err(ApiError::from(&*error)),
            News::Prefilled { done, cached, total } => {
                if std::mem::take(&mut self.choices[index].counts_cached) {
                    self.usage.cached += cached;
                }
                if done == total {
                    self.submit_held(self.choices[index].prompt)?;
                }
                vec![Event::Progress { done, total }]
            }
            News::Token(token) => {
                let (first, latest) = self.tokens.unwrap_or((at, at));
                self.tokens = Some((first.min(at), latest.max(at)));
                let mut events = answer.token(token);
                if answer.is_over() {
                    submitted.slot.completes();
                    events.extend(self.end(index, Finish::Stop));
                }
                events
            }
            News::Finished(finish) => self.end(index, finish),
        };
        self.ready.extend(events.into_iter().map(|event| (index, event)));
        Ok(())
    }

    /// Hands in the other answers to a prompt that was read.
    fn submit_held(&mut self, prompt: usize) -> Result<(), ApiError> {
        for choice in self.choices.iter_mut().filter(|choice| choice.prompt == prompt) {
            match std::mem::replace(&mut choice.stage, Stage::Complete) {
                Stage::Held(job) => choice.submit(*job, &self.entrance)?,
                stage => choice.stage = stage,
            }
        }
        Ok(())
    }

    fn end(&mut self, index: usize, finish: Finish) -> Vec<Event> {
        match std::mem::replace(&mut self.choices[index].stage, Stage::Complete) {
            Stage::Running(answer, _) => {
                self.usage.completion += answer.tokens();
                self.usage.reasoning += answer.reasoning_tokens();
                answer.finish(finish)
            }
            stage => {
                self.choices[index].stage = stage;
                Vec::new()
            }
        }
    }
}
