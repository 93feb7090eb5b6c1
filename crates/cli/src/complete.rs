//! `basert complete`: one prompt to one answer, streamed.

use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

use basert_engine::{Engine, GenerateParams, Generation, Options, SamplingParams, Session};
use basert_text::{DecodeStream, StopMatcher};
use serde_json::{Value, json};

use crate::answer::{
    Answer, Reason, decode_rate, decoded, guessed, larger_context, remark_sampling, room, speculated_json,
};
use crate::args::CompleteArgs;
use crate::bundle::Bundle;
use crate::conversation::Conversation;
use crate::failure::{Failure, Outcome};
use crate::interrupt::{Interrupt, Second};
use crate::options::PromptOptions;
use crate::units::{rate, seconds};
use crate::{output, selected, session};

/// Runs the command.
pub fn run(args: &CompleteArgs) -> Outcome {
    let interrupt = Interrupt::install(Second::Exits)?;
    // Everything that can be refused is refused before the weights are touched.
    let options = Options { speculation: args.speculative.resolve()?, ..args.run.resolve_to_fit(&args.fit)? };
    let bundle = Bundle::open(&args.model)?;
    let asked = Asked::new(args, &bundle)?;

    let start = Instant::now();
    let (tokenizer, file) = bundle.into_parts();
    let mut engine = Engine::load(file, &options).map_err(|e| Failure::from_load(&e))?;
    let mut session = session::open(&mut engine, args.session.as_deref())?;
    let load = start.elapsed();
    selected::show(&engine, args.verbose);

    let decoder = tokenizer.map(|t| match args.prompt.chat {
        true => DecodeStream::new(&t, true),
        false => DecodeStream::continuing(&t, true),
    });
    let answered = answer(args, &asked, decoder, &interrupt, (&mut engine, &mut session))?;
    if args.json {
        output::print_json(&report(&engine, &asked, &answered, load))?;
    } else {
        if !answered.text.as_ref().is_some_and(|text| text.ends_with('\n')) {
            output::print_generated("\n")?;
        }
        summarise(args, &answered, engine.selected().context);
    }
    if answered.reason == Reason::Interrupted { Err(interrupt.failure()) } else { Ok(()) }
}

/// What is asked of the model.
struct Asked {
    prompt: Vec<u32>,
    sampling: SamplingParams,
    stops: StopMatcher,
    eos: Vec<u32>,
}

impl Asked {
    /// Refuses what the bundle cannot do, and remarks on what is not as one might expect.
    fn new(args: &CompleteArgs, bundle: &Bundle) -> Outcome<Asked> {
        let recommended = bundle.recommended();
        let sampling = args.sampling.resolve(&recommended)?;
        let earlier = args.session.as_deref().map_or(Ok(Vec::new()), session::ids)?;
        let prompt = prompt_ids(&args.prompt, bundle, earlier)?;
        let stops = StopMatcher::new(&args.answer.stop).map_err(|e| Failure::from_error(&e))?;
        if !args.answer.stop.is_empty() {
            bundle.tokenizer()?;
        }
        if args.prompt.source.prompt_ids.is_some() {
            bundle.remark_unusable_tokenizer();
        }
        args.prompt.thinking().remark(bundle);
        remark_sampling(&args.sampling, &sampling, &recommended, bundle);
        let eos = if args.ignore_eos { Vec::new() } else { bundle.eos() };
        Ok(Asked { prompt, sampling, stops, eos })
    }
}

/// A finished answer.
struct Answered {
    generation: Generation,
    /// Absent for a model that has ids only.
    text: Option<String>,
    reason: Reason,
}

/// Makes the answer, prints it as it comes unless it is going to be JSON, and keeps the session where there is a file for it.
fn answer(
    args: &CompleteArgs,
    asked: &Asked,
    decoder: Option<DecodeStream>,
    interrupt: &Interrupt,
    (engine, session): (&mut Engine, &mut Session),
) -> Outcome<Answered> {
    let (prompt, context) = (&asked.prompt, engine.selected().context);
    let max_tokens =
        room(prompt.len(), context, args.answer.max_tokens).ok_or_else(|| no_room(prompt.len(), context))?;
    let (sampling, eos) = (asked.sampling.clone(), asked.eos.clone());
    let params = GenerateParams { sampling, max_tokens, eos, prefill_chunk: None };
    let is_text = decoder.is_some();
    let mut text = String::new();
    let mut take = |piece: &str| {
        text.push_str(piece);
        if args.json { Ok(()) } else { output::print_generated(piece) }
    };
    let cancelled = || interrupt.requested();
    let mut answer = Answer::new(decoder, asked.stops.clone(), &mut take, &cancelled);
    let generation = session
        .generate(engine, prompt, &params, &mut |event| answer.on_event(event))
        .map_err(|e| Failure::from_error(&e))?;
    if let Some(file) = &args.session {
        session::save_ids(session, engine, file, &[&prompt[..], &generation.ids].concat())?;
    }
    let reason = answer.finish(generation.finish)?;
    Ok(Answered { generation, text: is_text.then_some(text), reason })
}

/// The tokens that the model reads: those of the session, and the prompt.
fn prompt_ids(options: &PromptOptions, bundle: &Bundle, earlier: Vec<u32>) -> Outcome<Vec<u32>> {
    let source = &options.source;
    let begins = earlier.is_empty();
    if let Some(ids) = &source.prompt_ids {
        return Ok([earlier, ids.clone()].concat());
    }
    let text = match (&source.prompt, &source.prompt_file) {
        (Some(text), _) => text.clone(),
        (None, Some(file)) => read_prompt(file)?,
        (None, None) => String::new(),
    };
    let ids = if options.chat {
        let hint = "leave out --chat and write the prompt as the model was trained to see it";
        let tokenizer = bundle.tokenizer()?;
        let template = bundle.chat_template().map_err(|failure| failure.hint(hint))?;
        let mut conversation =
            Conversation::new(tokenizer.clone(), template, options.system.clone(), options.thinking());
        conversation.ask(&text);
        conversation.prompt()?.ids
    } else {
        let new = bundle.tokenizer()?.encode(&text, begins, true).map_err(|e| Failure::from_error(&e))?;
        [earlier, new].concat()
    };
    if ids.is_empty() {
        let hint = "this model has no begin-of-sequence token to start from; give at least one character";
        return Err(Failure::new("the prompt is empty").hint(hint));
    }
    Ok(ids)
}

fn read_prompt(file: &Path) -> Outcome<String> {
    let (name, bytes) = if file == Path::new("-") {
        let mut bytes = Vec::new();
        ("standard input".to_owned(), std::io::stdin().lock().read_to_end(&mut bytes).map(|_| bytes))
    } else {
        (file.display().to_string(), std::fs::read(file))
    };
    let bytes = bytes.map_err(|e| Failure::new(format!("cannot read the prompt from {name}: {e}")))?;
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        Failure::new(format!("the prompt in {name} is not UTF-8: invalid byte at offset {at}"))
    })
}

fn no_room(prompt: usize, context: usize) -> Failure {
    Failure::new(format!(
        "the prompt has {prompt} tokens, which leaves no room for an answer in the context of {context}"
    ))
    .hint(format!("shorten the prompt or raise the context, such as -c {}", larger_context(prompt)))
}

/// Speed, and why the answer ended where that is not obvious.
fn summarise(args: &CompleteArgs, answered: &Answered, context: usize) {
    let Answered { generation, reason, .. } = answered;
    let (prompt, answer) = (generation.prompt_tokens, generation.ids.len());
    let read = prompt - generation.kept_tokens;
    let cut = *reason == Reason::Length && args.answer.max_tokens != Some(answer);
    if cut {
        output::note(&format!(
            "the answer ends at the context of {context} tokens ({prompt} of the prompt, {answer} generated)"
        ));
    }
    if args.verbose || output::stderr_is_terminal() {
        let speed =
            |tokens, time: Duration| format!("{} ({:.1} tokens/s)", seconds(time), rate(tokens, time));
        output::say(&format!(
            "prompt {read} tokens in {}, answer {answer} tokens in {}",
            speed(read, generation.prefill),
            speed(decoded(generation), generation.decode),
        ));
        guessed(&generation.speculated).iter().for_each(|text| output::say(text));
    }
}

fn report(engine: &Engine, asked: &Asked, answered: &Answered, load: Duration) -> Value {
    let (Asked { prompt, sampling, .. }, Answered { generation, text, reason }) = (asked, answered);
    json!({
        "prompt_ids": prompt,
        "ids": generation.ids,
        "text": text,
        "finish_reason": reason.name(),
        "timings": {
            "load_s": load.as_secs_f64(),
            "prompt_tokens": generation.prompt_tokens,
            "kept_tokens": generation.kept_tokens,
            "prefill_s": generation.prefill.as_secs_f64(),
            "prefill_tokens_per_s": rate(generation.prompt_tokens - generation.kept_tokens, generation.prefill),
            "first_token_s": generation.first_token.as_secs_f64(),
            "generated_tokens": generation.ids.len(),
            "decode_s": generation.decode.as_secs_f64(),
            "decode_tokens_per_s": decode_rate(generation),
        },
        "speculated": speculated_json(&generation.speculated),
        "sampling": {
            "temperature": decimal(sampling.temperature),
            "top_k": sampling.top_k,
            "top_p": decimal(sampling.top_p),
            "min_p": decimal(sampling.min_p),
            "repetition_penalty": decimal(sampling.repetition_penalty),
            "presence_penalty": decimal(sampling.presence_penalty),
            "frequency_penalty": decimal(sampling.frequency_penalty),
            "seed": sampling.seed,
        },
        "selected": selected::to_json(engine.selected()),
    })
}

/// The double that prints with the digits of the float: 0.95 and not 0.949999988079071.
fn decimal(x: f32) -> f64 {
    x.to_string().parse().unwrap_or(f64::from(x))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_that_fills_the_context_is_refused_with_both_numbers() {
        let Failure::Error { message, hint } = no_room(513, 512) else { panic!("no error") };
        assert!(message.contains("513") && message.contains("512"), "{message}");
        assert!(hint.unwrap().ends_with("-c 1024"));
    }
}
