//! Servers to talk to, and a client that talks.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use basert_convert::{Options as ConvertOptions, Silent, convert};
use basert_engine::{
    Client, Engine, EngineError, Finish, Limits, News, Options, Request, SamplingParams, Scheduler, Token,
};
use basert_format::BaseFile;
use basert_server::{
    App, Backend, Config, Facts, Grammars, Hosted, Loaded, Metrics, Model, Worker, serve_on,
};
use basert_text::{ChatTemplate, Tokenizer};
use serde_json::{Value, json};

/// How long a test waits for what must come, on a machine that has other things to do.
const PATIENCE: Duration = Duration::from_secs(300);

/// A chat template with all that templates have: tools, calls, and a switch for thinking.
const TEMPLATE: &str = "\
{%- if tools %}{{- '<|im_start|>system\\nTools: ' + (tools | tojson) + '<|im_end|>\\n' }}{%- endif %}\
{%- for message in messages %}\
{%- if message.role == 'system' and not loop.first %}{{- raise_exception('system comes first') }}{%- endif %}\
{{- '<|im_start|>' + message.role + '\\n' + message.content }}\
{%- for call in message.tool_calls or [] %}\
{{- '<tool_call>\\n<function=' + call.function.name + '>\\n' }}\
{%- for key, value in call.function.arguments | items %}\
{{- '<parameter=' + key + '>\\n' + (value if value is string else value | tojson) + '\\n</parameter>\\n' }}\
{%- endfor %}{{- '</function>\\n</tool_call>' }}{%- endfor %}\
{{- '<|im_end|>\\n' }}{%- endfor %}\
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}\
{%- if enable_thinking is defined %}{{- '<think>\\n' if enable_thinking else '<think>\\n\\n</think>\\n\\n' }}\
{%- endif %}{%- endif %}";

/// The toy model as a `.base` file, made once per test program.
pub fn toy() -> &'static Path {
    static MODEL: OnceLock<PathBuf> = OnceLock::new();
    MODEL.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/toy-hybrid");
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("toy-{}.base", std::process::id()));
        let options = ConvertOptions { target: "base-q4".parse().unwrap(), ..Default::default() };
        convert(&source, &path, &options, &mut Silent).unwrap();
        path
    })
}

/// The toy model's text side.
pub fn model() -> Model {
    let file = BaseFile::open(toy()).unwrap();
    let tokenizer = Tokenizer::from_header(&file.header().tokenizer).unwrap();
    Model {
        id: "toy".to_owned(),
        created: 1,
        path: "toy.base".to_owned(),
        eos: tokenizer.eog_ids().to_vec(),
        grammars: Grammars::default(),
        template: Some(ChatTemplate::new(TEMPLATE, None, None).unwrap()),
        template_source: Some(TEMPLATE.to_owned()),
        tokenizer,
        sampling: SamplingParams { temperature: 1.0, ..SamplingParams::default() },
        seed: None,
    }
}

/// An engine for the toy model.
pub fn engine(slots: usize, context: usize) -> Engine {
    let options = Options {
        context: Some(context),
        page_tokens: Some(32),
        sequences: slots,
        logit_rows: slots + 8,
        threads: Some(1),
        prefix_cache: 1 << 20,
        step_tokens: 64,
        ..Options::default()
    };
    Engine::open(toy(), &options).unwrap()
}

/// A server that runs until it is dropped.
pub struct Server {
    pub address: SocketAddr,
    pub app: Arc<App>,
    runtime: Option<tokio::runtime::Runtime>,
}

impl Server {
    /// A server for the toy model.
    pub fn toy(slots: usize, context: usize, config: Config) -> Server {
        Server::toy_as(model(), slots, context, config)
    }

    /// A server for the toy model with another text side.
    pub fn toy_as(model: Model, slots: usize, context: usize, config: Config) -> Server {
        let load = move || {
            let engine = engine(slots, context);
            let facts = Facts {
                context,
                slots,
                vocab: engine.spec().vocab,
                engine: json!({"k_type": "f16", "v_type": "f16", "memory": {"kv": 1}}),
            };
            let limits = Limits { prefill_tokens: 32 };
            Ok(Loaded { backend: Box::new(Scheduler::new(engine, limits)) as Box<dyn Backend>, facts })
        };
        Server::start(model, Box::new(load), config)
    }

    /// A server whose answers are what `script` says at the time of the request.
    pub fn scripted(script: &Script, config: Config) -> Server {
        Server::scripted_as(model(), script, config)
    }

    /// A scripted server with another text side.
    pub fn scripted_as(model: Model, script: &Script, config: Config) -> Server {
        let script = script.clone();
        let load = move || {
            script.loads.fetch_add(1, Ordering::SeqCst);
            let backend = Scripted { script: script.clone(), running: Vec::new() };
            let facts = Facts { context: 4096, slots: 4, vocab: 512, engine: Value::Null };
            Ok(Loaded { backend: Box::new(backend) as Box<dyn Backend>, facts })
        };
        Server::start(model, Box::new(load), config)
    }

    fn start(model: Model, load: basert_server::Loader, config: Config) -> Server {
        let metrics = Arc::new(Metrics::default());
        let worker = Worker::start(load, config.idle_timeout, Arc::clone(&metrics)).unwrap();
        let log = Path::new(env!("CARGO_TARGET_TMPDIR")).join("server-tests.log");
        let config = Config { log_file: Some(config.log_file.unwrap_or(log)), ..config };
        let hosted = vec![Hosted { model: Arc::new(model), worker }];
        let app = Arc::new(App::new(config, hosted, metrics).unwrap());
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(serve_on(Arc::clone(&app), listener));
        Server { address, app, runtime: Some(runtime) }
    }

    pub fn get(&self, path: &str) -> Reply {
        self.get_with(path, &[])
    }

    pub fn get_with(&self, path: &str, headers: &[(&str, &str)]) -> Reply {
        self.send(&self.head("GET", path, headers), b"")
    }

    pub fn post(&self, path: &str, body: &Value) -> Reply {
        self.post_with(path, body.to_string().as_bytes(), &[])
    }

    pub fn post_with(&self, path: &str, body: &[u8], headers: &[(&str, &str)]) -> Reply {
        let length = body.len().to_string();
        let headers: Vec<_> = headers.iter().copied().chain([("Content-Length", length.as_str())]).collect();
        self.send(&self.head("POST", path, &headers), body)
    }

    /// A chat, not streamed.
    pub fn chat(&self, body: Value) -> Value {
        self.post("/v1/chat/completions", &with_message(body)).json()
    }

    /// A chat, streamed: its events.
    pub fn chat_events(&self, mut body: Value) -> Vec<Value> {
        body["stream"] = true.into();
        self.post("/v1/chat/completions", &with_message(body)).events()
    }

    pub fn head(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> String {
        let mut head = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
        if !headers.iter().any(|(name, _)| *name == "Host") {
            head += &format!("Host: {}\r\n", self.address);
        }
        headers.iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
        head + "\r\n"
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    pub fn send(&self, head: &str, body: &[u8]) -> Reply {
        let mut stream = self.connect();
        stream.write_all(head.as_bytes()).unwrap();
        // A server that has heard enough may close.
        let _ = stream.write_all(body);
        Reply::read(stream)
    }

    /// Requests in the engine.
    pub fn busy(&self) -> usize {
        let text = self.get("/metrics").text();
        let value = |name: &str| -> usize {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap();
            line.rsplit(' ').next().unwrap().parse().unwrap()
        };
        value("basert_requests_running ") + value("basert_requests_waiting ")
    }

    /// Waits until no request is in the engine.
    pub fn wait_until_idle(&self) {
        wait_until("the engine is idle", || self.busy() == 0);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.app.stop();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Waits for what must come soon.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn with_message(mut body: Value) -> Value {
    if body.get("messages").is_none() {
        body["messages"] = json!([{"role": "user", "content": "hi"}]);
    }
    body
}

/// A response.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn read(stream: TcpStream) -> Reply {
        let mut reader = BufReader::new(stream);
        let line = |reader: &mut BufReader<TcpStream>| {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            line.trim_end().to_owned()
        };
        let status = line(&mut reader);
        let status = status.split(' ').nth(1).unwrap_or_else(|| panic!("{status:?}")).parse().unwrap();
        let mut headers = Vec::new();
        loop {
            let header = line(&mut reader);
            let Some((name, value)) = header.split_once(": ") else { break };
            headers.push((name.to_lowercase(), value.to_owned()));
        }
        let mut body = Vec::new();
        if headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked") {
            loop {
                let size = usize::from_str_radix(&line(&mut reader), 16).unwrap_or(0);
                if size == 0 {
                    break;
                }
                let start = body.len();
                body.resize(start + size, 0);
                reader.read_exact(&mut body[start..]).unwrap();
                line(&mut reader);
            }
        } else {
            reader.read_to_end(&mut body).unwrap();
        }
        Reply { status, headers, body }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    /// The events of a stream that came to its end.
    #[track_caller]
    pub fn events(&self) -> Vec<Value> {
        assert_eq!(self.status, 200, "{}", self.text());
        assert!(self.header("content-type").unwrap().starts_with("text/event-stream"));
        let text = self.text();
        let lines: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
        let (last, events) = lines.split_last().unwrap();
        assert_eq!(*last, "[DONE]", "{text}");
        events.iter().map(|event| serde_json::from_str(event).unwrap()).collect()
    }

    /// An error in OpenAI's shape: its status and `param`.
    #[track_caller]
    pub fn error(&self) -> (u16, Option<String>) {
        let body = self.json();
        let error = body["error"].as_object().unwrap_or_else(|| panic!("{body}"));
        assert_eq!(error.keys().collect::<Vec<_>>(), ["message", "type", "param", "code"]);
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()));
        (self.status, error["param"].as_str().map(str::to_owned))
    }
}

/// What the scripted engine says.
#[derive(Clone)]
pub struct Script {
    said: Arc<Mutex<(Vec<u32>, Finish)>>,
    /// Steps that may be made; more only when raised.
    pub steps: Arc<AtomicUsize>,
    /// How often its model was loaded.
    pub loads: Arc<AtomicUsize>,
    tokenizer: Tokenizer,
}

impl Script {
    pub fn new() -> Script {
        let steps = Arc::new(AtomicUsize::new(usize::MAX));
        let (said, loads) = (Arc::new(Mutex::new((Vec::new(), Finish::Stop))), Arc::default());
        Script { said, steps, loads, tokenizer: model().tokenizer }
    }

    /// Says these pieces, each in tokens of its own.
    pub fn say(&self, pieces: &[&str], finish: Finish) {
        let ids = pieces.iter().flat_map(|piece| self.tokenizer.encode(piece, false, true).unwrap());
        *self.said.lock().unwrap() = (ids.collect(), finish);
    }

    /// Says these bytes, one a token.
    pub fn say_bytes(&self, bytes: &[u8], finish: Finish) {
        let id = |byte: &u8| {
            let is_it = |id: &u32| self.tokenizer.token_bytes(*id).is_some_and(|bytes| bytes == [*byte]);
            (0..512).find(is_it).unwrap()
        };
        *self.said.lock().unwrap() = (bytes.iter().map(id).collect(), finish);
    }
}

/// An engine that says what it is told to say.
struct Scripted {
    script: Script,
    running: Vec<Said>,
}

struct Said {
    request: Request,
    client: Box<dyn Client>,
    script: (Vec<u32>, Finish),
    at: usize,
}

impl Backend for Scripted {
    fn submit(&mut self, request: Request, client: Box<dyn Client>) -> Result<(), EngineError> {
        let script = self.script.said.lock().unwrap().clone();
        self.running.push(Said { request, client, script, at: 0 });
        Ok(())
    }

    fn step(&mut self) {
        let spend = |left: usize| left.checked_sub(1);
        self.running.retain(|said| !said.client.is_gone());
        if self.script.steps.fetch_update(Ordering::SeqCst, Ordering::SeqCst, spend).is_err() {
            std::thread::sleep(Duration::from_millis(1));
            return;
        }
        self.running.retain_mut(|said| said.go_on());
    }

    fn has_work(&self) -> bool {
        !self.running.is_empty()
    }
}

impl Said {
    /// False if that was the end.
    fn go_on(&mut self) -> bool {
        let (ids, finish) = &self.script;
        let total = self.request.prompt.len();
        // The prompt takes two steps.
        let said = self.at.saturating_sub(2);
        let news = if self.at < 2 {
            News::Prefilled { done: if self.at == 0 { total / 2 } else { total }, cached: 0, total }
        } else if said >= self.request.params.max_tokens {
            News::Finished(Finish::Length)
        } else if let Some(&id) = ids.get(said) {
            let score = |id: u32| -((id % 7) as f32) - 0.5;
            let count = self.request.logprobs;
            let top = (0..count.unwrap_or(0) as u32).map(|other| (other, score(other))).collect();
            News::Token(Token { id, logprob: count.map(|_| score(id)), top })
        } else {
            News::Finished(*finish)
        };
        self.at += 1;
        let is_end = matches!(news, News::Finished(_));
        self.client.take(news).is_continue() && !is_end
    }
}
