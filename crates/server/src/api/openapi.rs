//! The OpenAPI document, made from [the table of fields](super::fields) and the list of paths.

use serde_json::{Map, Value, json};

use super::fields::{Endpoint, FIELDS, Field, Handling};

/// A path, its method, what it is for, the schema of its request and that of its response.
type Operation = (&'static str, &'static str, &'static str, Option<&'static str>, &'static str);

/// Everything but the page and its files.
const OPERATIONS: &[Operation] = &[
    ("/v1/chat/completions", "post", "A conversation", Some("ChatRequest"), "ChatCompletion"),
    ("/v1/completions", "post", "Raw prompts", Some("CompletionRequest"), "Completion"),
    ("/v1/models", "get", "The models", None, "ModelList"),
    ("/v1/models/{id}", "get", "A model and what it can do", None, "Model"),
    ("/v1/models/load", "post", "Brings a model into memory", Some("ModelName"), "Model"),
    ("/v1/models/unload", "post", "Gives a model's memory back", Some("ModelName"), "Model"),
    ("/v1/tokenize", "post", "Text to token ids", Some("TokenizeRequest"), "Tokens"),
    ("/v1/detokenize", "post", "Token ids to text", Some("DetokenizeRequest"), "Text"),
    ("/v1/apply-template", "post", "The prompt of a chat request", Some("ChatRequest"), "Prompt"),
    ("/v1/engine", "get", "Instruction set, weights, KV types, memory", None, "Object"),
    ("/health", "get", "Whether the server lives", None, "Object"),
    ("/ready", "get", "Whether the server takes requests", None, "Object"),
    ("/metrics", "get", "Figures for Prometheus", None, ""),
    ("/props", "get", "Defaults and selections, as llama-server has them", None, "Object"),
    ("/slots", "get", "Sequences and what is in them, as llama-server has them", None, "Objects"),
    ("/openapi.json", "get", "This document", None, "Object"),
];

/// The document.
pub fn document() -> Value {
    let mut paths = Map::new();
    for operation in OPERATIONS {
        paths.insert(operation.0.to_owned(), json!({operation.1: described(operation)}));
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "basert serve",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "An endpoint for clients of OpenAI's API; docs/api.md says more.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas(),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    })
}

fn described((path, _, summary, request, response): &Operation) -> Value {
    let content = |schema: Value| json!({"application/json": {"schema": schema}});
    let mut good = match *response {
        "" => json!({"application/openmetrics-text": {"schema": {"type": "string"}}}),
        name => content(reference(name)),
    };
    let chunks = match *response {
        "ChatCompletion" => Some("ChatCompletionChunk"),
        "Completion" => Some("Completion"),
        _ => None,
    };
    if let Some(chunks) = chunks {
        good["text/event-stream"] = json!({"schema": reference(chunks)});
    }
    let mut described = json!({
        "summary": summary,
        "responses": {
            "200": {"description": "As asked", "content": good},
            "default": {"description": "What is wrong", "content": content(reference("Error"))},
        },
    });
    if let Some(name) = request {
        described["requestBody"] = json!({"required": true, "content": content(reference(name))});
    }
    if path.contains("{id}") {
        let schema = json!({"type": "string"});
        described["parameters"] = json!([{"name": "id", "in": "path", "required": true, "schema": schema}]);
    }
    described
}

fn schemas() -> Value {
    let parts = [requests(), answers(), models(), tokens(), problems()];
    parts.into_iter().flatten().collect()
}

/// Schemas by name.
type Named = Vec<(&'static str, Value)>;

fn requests() -> Named {
    vec![
        ("ChatRequest", request(Endpoint::Chat, &["messages"])),
        ("CompletionRequest", request(Endpoint::Completions, &["prompt"])),
    ]
}

fn answers() -> Named {
    let message = object(json!({
        "role": text(), "content": {"type": ["string", "null"]}, "reasoning_content": text(),
        "tool_calls": array(json!({"type": "object"})),
    }));
    let usage = object(json!({
        "prompt_tokens": number(), "completion_tokens": number(), "total_tokens": number(),
        "prompt_tokens_details": object(json!({"cached_tokens": number()})),
        "completion_tokens_details": object(json!({"reasoning_tokens": number()})),
    }));
    vec![
        ("ChatCompletion", answer("message", message.clone())),
        ("ChatCompletionChunk", answer("delta", message)),
        ("Completion", answer("text", text())),
        ("Usage", usage),
    ]
}

/// An answer whose choices have `schema` under `name`.
fn answer(name: &str, schema: Value) -> Value {
    let mut choice = object(json!({"index": number(), "finish_reason": {"type": ["string", "null"]}}));
    choice["properties"][name] = schema;
    choice["properties"]["logprobs"] = json!({"type": ["object", "null"]});
    object(json!({
        "id": text(), "object": text(), "created": number(), "model": text(), "system_fingerprint": text(),
        "choices": array(choice), "usage": reference("Usage"), "timings": {"type": "object"}, "warnings": array(text()),
    }))
}

fn models() -> Named {
    let model = object(json!({
        "id": text(), "object": text(), "created": number(), "owned_by": text(), "status": text(),
        "max_model_len": number(), "capabilities": {"type": "object"},
    }));
    vec![
        ("Model", model),
        ("ModelList", object(json!({"object": text(), "data": array(reference("Model"))}))),
        ("ModelName", object(json!({"model": text()}))),
    ]
}

fn tokens() -> Named {
    let flag = json!({"type": "boolean"});
    let tokenize = object(json!({
        "model": text(), "content": text(), "add_special": flag, "parse_special": flag, "with_pieces": flag,
    }));
    vec![
        ("TokenizeRequest", tokenize),
        ("DetokenizeRequest", object(json!({"model": text(), "tokens": array(number())}))),
        ("Tokens", object(json!({"tokens": {"type": "array"}, "count": number()}))),
        ("Text", object(json!({"content": text()}))),
        ("Prompt", object(json!({"prompt": text(), "tokens": array(number())}))),
    ]
}

/// What says what is wrong, and what has no schema of its own.
fn problems() -> Named {
    let error = object(json!({
        "message": text(), "type": text(), "param": {"type": ["string", "null"]}, "code": {"type": ["string", "null"]},
    }));
    vec![
        ("Error", object(json!({"error": error}))),
        ("Object", json!({"type": "object"})),
        ("Objects", array(json!({"type": "object"}))),
    ]
}

fn text() -> Value {
    json!({"type": "string"})
}

fn number() -> Value {
    json!({"type": "integer"})
}

fn object(properties: Value) -> Value {
    json!({"type": "object", "properties": properties})
}

fn array(items: Value) -> Value {
    json!({"type": "array", "items": items})
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

/// The fields of a request, but for those that are refused.
fn request(endpoint: Endpoint, required: &[&str]) -> Value {
    let mut properties = Map::new();
    for field in FIELDS {
        let effect = match field.handling(endpoint) {
            Handling::Honoured => "",
            Handling::Warned => "without effect: ",
            Handling::Refused | Handling::Unknown => continue,
        };
        let mut schema = schema(field, endpoint);
        let description = format!("{effect}{}", field.note);
        if !description.is_empty() {
            schema["description"] = description.into();
        }
        properties.insert(field.name.to_owned(), schema);
    }
    json!({"type": "object", "properties": properties, "required": required})
}

/// The type of a field: that of the table's sample, unless it has several.
fn schema(field: &Field, endpoint: Endpoint) -> Value {
    let texts = json!({"type": "array", "items": {"type": "string"}});
    let of_text = |other: Value| json!({"anyOf": [{"type": "string"}, other]});
    match field.name {
        "messages" => {
            json!({"type": "array", "items": {"type": "object", "required": ["role"], "properties": {
                "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
                "content": {"anyOf": [{"type": "string"}, {"type": "array"}, {"type": "null"}]},
                "tool_calls": {"type": "array"}, "tool_call_id": {"type": "string"}, "reasoning_content": {"type": "string"},
            }}})
        }
        "prompt" => of_text(json!({"type": "array"})),
        "stop" => of_text(texts),
        "tool_choice" => of_text(json!({"type": "object"})),
        "logprobs" if endpoint == Endpoint::Completions => json!({"type": "integer"}),
        _ => json!({"type": type_of(&serde_json::from_str(field.sample).unwrap_or_default())}),
    }
}

fn type_of(sample: &Value) -> &'static str {
    match sample {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
