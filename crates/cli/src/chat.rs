//! `basert chat`: a conversation, on a terminal or in a pipe.

mod input;
mod screen;

use std::path::PathBuf;

use basert_engine::{Engine, GenerateParams, Generation, SamplingParams, Session};
use basert_text::{DecodeStream, Part, StopMatcher, ThinkSplitter, Tokenizer, opens_thinking};

use crate::answer::{Answer, Reason, decode_rate, guessed, larger_context, remark_sampling, room};
use crate::args::ChatArgs;
use crate::bundle::Bundle;
use crate::conversation::{Conversation, Thinking};
use crate::failure::{Failure, Outcome};
use crate::interrupt::Turns;
use crate::reserved::Purpose;
use crate::units::rate;
use crate::{kept, output, place, selected, session};
use input::{Entry, Input};
use screen::Screen;

const HELP: &str = "\
/clear  begin a new conversation
/exit   end, as ^D does
/help   show this
//text  send /text as a message
A line that ends in \\ goes on in the next one. ^C stops the answer.
";

/// Runs the command.
pub fn run(args: &ChatArgs) -> Outcome {
    let mut turns = Turns::install()?;
    // Everything that can be refused is refused before the weights are touched.
    let mut options = args.run.resolve_to_fit(&args.fit)?;
    options.speculation = args.speculative.resolve()?;
    let bundle = Bundle::open(&args.model)?;
    let Asked { conversation, tokenizer, sampling, eos, stops } = Asked::new(args, &bundle)?;

    let (_, file) = bundle.into_parts();
    options.prefix_cache = Purpose::Chat.prefix_cache_for(args.prefix_cache, &file, &options);
    let mut engine = Engine::load(file, &options).map_err(|e| Failure::from_load(&e))?;
    selected::show(&engine, args.verbose);
    let session = session::open(&mut engine, args.session.as_deref())?;
    if let Some(path) = &args.prefix_cache_file {
        kept::load(&mut engine, path)?;
    }
    let mut input = Input::new()?;
    if input.is_terminal() {
        turns.leave_to_editor();
    }
    let chat = Chat {
        on_terminal: input.is_terminal(),
        max_tokens: args.answer.max_tokens,
        verbose: args.verbose,
        engine,
        session,
        file: args.session.clone(),
        prefixes: args.prefix_cache_file.clone(),
        conversation,
        tokenizer,
        sampling,
        eos,
        stops,
        answers: 0,
        turns,
    };
    chat.run(&mut input)
}

/// What is asked of the model.
struct Asked {
    conversation: Conversation,
    tokenizer: Tokenizer,
    sampling: SamplingParams,
    eos: Vec<u32>,
    stops: StopMatcher,
}

impl Asked {
    /// Refuses what the bundle and the files of the conversation cannot do, and remarks on what is not as one might expect.
    fn new(args: &ChatArgs, bundle: &Bundle) -> Outcome<Asked> {
        let recommended = bundle.recommended();
        let sampling = args.sampling.resolve(&recommended)?;
        let stops = StopMatcher::new(&args.answer.stop).map_err(|e| Failure::from_error(&e))?;
        let hint = "basert complete continues plain text and token ids";
        let tokenizer = bundle.tokenizer().map_err(|failure| failure.hint(hint))?.clone();
        let template = bundle.chat_template().map_err(|failure| failure.hint(hint))?;
        let thinking = Thinking { think: args.think, no_think: args.no_think };
        let mut conversation = Conversation::new(tokenizer.clone(), template, args.system.clone(), thinking);
        if let Some(path) = &args.prefix_cache_file {
            place::check(path, true)?;
            place::check_folder(path)?;
        }
        if let Some(messages) = args.session.as_deref().map(session::messages).transpose()?.flatten() {
            conversation.restore(messages)?;
        }
        try_out(&conversation)?;
        thinking.remark(bundle);
        remark_sampling(&args.sampling, &sampling, &recommended, bundle);
        Ok(Asked { conversation, tokenizer, sampling, eos: bundle.eos(), stops })
    }
}

/// Refuses a template that cannot open a conversation while nothing is loaded yet.
fn try_out(conversation: &Conversation) -> Outcome {
    let mut trial = conversation.clone();
    trial.ask("Hi");
    trial.prompt().map(drop)
}

/// A running conversation.
struct Chat {
    on_terminal: bool,
    max_tokens: Option<usize>,
    verbose: bool,
    engine: Engine,
    session: Session,
    /// Where the session is kept.
    file: Option<PathBuf>,
    /// Where earlier states are kept.
    prefixes: Option<PathBuf>,
    conversation: Conversation,
    tokenizer: Tokenizer,
    sampling: SamplingParams,
    eos: Vec<u32>,
    stops: StopMatcher,
    /// Answers begun, for their seeds.
    answers: u64,
    turns: Turns,
}

impl Chat {
    fn run(mut self, input: &mut Input) -> Outcome {
        let talked = self.talk(input);
        // What was said before something went wrong is kept as well.
        let saved = self.save();
        talked.and(saved)
    }

    fn save(&mut self) -> Outcome {
        if let Some(file) = &self.file {
            session::save_messages(&self.session, &self.engine, file, self.conversation.messages())?;
        }
        if let Some(path) = &self.prefixes {
            self.session.clear(&mut self.engine);
            self.engine.save_prefixes(path).map_err(|e| Failure::from_error(&e))?;
        }
        Ok(())
    }

    fn talk(&mut self, input: &mut Input) -> Outcome {
        if self.on_terminal {
            let context = self.engine.selected().context;
            output::aside(&format!("context {context} tokens; /help shows the commands, ^D ends"));
        }
        loop {
            let done = match input.next()? {
                Entry::Exit => return Ok(()),
                Entry::Nothing => Ok(()),
                Entry::Help => output::print(HELP),
                Entry::Clear => {
                    self.clear();
                    Ok(())
                }
                Entry::Unknown(command) => Err(unknown(&command)),
                Entry::Message(text) => self.turn(&text),
            };
            match done {
                // At a prompt a person can try again.
                Err(failure @ Failure::Error { .. }) if self.on_terminal => output::report(&failure),
                other => other?,
            }
        }
    }

    fn clear(&mut self) {
        self.conversation.clear();
        self.session.clear(&mut self.engine);
        if self.on_terminal {
            output::aside("a new conversation");
        }
    }

    /// One message and its answer. A message that gets none is taken back.
    fn turn(&mut self, text: &str) -> Outcome {
        self.conversation.ask(text);
        let answered = self.answer();
        match &answered {
            Ok(Some(reply)) => self.conversation.answer(&reply.answer, &reply.thinking),
            Ok(None) | Err(_) => self.conversation.take_back(),
        }
        answered.map(drop)
    }

    /// The answer to what was said so far; `None` if it was stopped before its first token.
    fn answer(&mut self) -> Outcome<Option<Reply>> {
        let prompt = self.conversation.prompt()?;
        let context = self.engine.selected().context;
        let max_tokens = room(prompt.ids.len(), context, self.max_tokens)
            .ok_or_else(|| no_room(prompt.ids.len(), context))?;
        let seed = self.sampling.seed.wrapping_add(self.answers);
        self.answers += 1;
        let params = GenerateParams {
            sampling: SamplingParams { seed, ..self.sampling.clone() },
            max_tokens,
            eos: self.eos.clone(),
            prefill_chunk: None,
        };

        let mut reply = Reply::new(opens_thinking(&prompt.text), Screen::new(self.on_terminal));
        let mut take = |piece: &str| reply.push(piece);
        let answering = self.turns.answering();
        let cancelled = || answering.stop_requested();
        let decoder = Some(DecodeStream::answering(&self.tokenizer));
        let mut answer = Answer::new(decoder, self.stops.clone(), &mut take, &cancelled);
        let generation = self
            .session
            .generate(&mut self.engine, &prompt.ids, &params, &mut |event| answer.on_event(event))
            .map_err(|e| Failure::from_error(&e))?;
        let reason = answer.finish(generation.finish)?;
        drop(answering);
        let unfinished = reply.finish()?;

        if reason == Reason::Interrupted && generation.ids.is_empty() {
            output::note("stopped before the answer began; the message is not part of the conversation");
            return Ok(None);
        }
        self.remark_end(&generation, reason, unfinished);
        self.show_speed(&generation);
        Ok(Some(reply))
    }

    /// Says why an answer ended where that is not obvious.
    fn remark_end(&self, generation: &Generation, reason: Reason, unfinished: bool) {
        let (answer, context) = (generation.ids.len(), self.engine.selected().context);
        if reason == Reason::Length && self.max_tokens != Some(answer) {
            output::note(&format!(
                "the answer ends at the context of {context} tokens ({} of the conversation, {answer} generated); \
                 /clear begins a new one, -c makes room",
                generation.prompt_tokens
            ));
        }
        if unfinished && reason != Reason::Interrupted {
            output::note(&format!("the answer ended within its thinking, after {answer} tokens"));
        }
    }

    fn show_speed(&self, generation: &Generation) {
        if !self.verbose && !output::stderr_is_terminal() {
            return;
        }
        let Generation { ids, prompt_tokens, kept_tokens, prefill, .. } = generation;
        let read = prompt_tokens - kept_tokens;
        let kept = if *kept_tokens > 0 { format!(" after {kept_tokens} kept") } else { String::new() };
        output::aside(&format!(
            "{} tokens, {:.1} tokens/s; prompt {read} tokens{kept}, {:.1} tokens/s; context {} of {}",
            ids.len(),
            decode_rate(generation),
            rate(read, *prefill),
            self.session.tokens().len(),
            self.engine.selected().context,
        ));
        guessed(&generation.speculated).iter().for_each(|text| output::aside(text));
    }
}

/// An answer, taken apart and shown as it arrives.
struct Reply {
    splitter: ThinkSplitter,
    screen: Screen,
    thinking: String,
    answer: String,
}

impl Reply {
    fn new(thinks: bool, screen: Screen) -> Reply {
        Reply { splitter: ThinkSplitter::new(thinks), screen, thinking: String::new(), answer: String::new() }
    }

    fn push(&mut self, piece: &str) -> Outcome {
        let parts = self.splitter.push(piece);
        self.show(parts)
    }

    /// Ends the answer; true if it never got beyond its thinking.
    fn finish(&mut self) -> Outcome<bool> {
        let splitter = std::mem::replace(&mut self.splitter, ThinkSplitter::new(false));
        let thinking = splitter.is_thinking();
        self.show(splitter.finish())?;
        output::print_generated(&self.screen.end())?;
        Ok(thinking)
    }

    fn show(&mut self, parts: Vec<Part>) -> Outcome {
        for part in parts {
            let text = self.screen.show(&part);
            match part {
                Part::Thinking(text) => self.thinking.push_str(&text),
                Part::Answer(text) => self.answer.push_str(&text),
            }
            output::print_generated(&text)?;
        }
        Ok(())
    }
}

fn unknown(command: &str) -> Failure {
    Failure::new(format!("there is no command {command}; it was not sent to the model"))
        .hint("/help shows the commands; //… sends a message that begins with /")
}

fn no_room(conversation: usize, context: usize) -> Failure {
    Failure::new(format!(
        "the conversation has {conversation} tokens with this message, which leaves no room for an answer in the context \
         of {context}"
    ))
    .hint(format!(
        "/clear begins a new conversation; for a longer one start with a larger context, such as -c {}",
        larger_context(conversation)
    ))
}
