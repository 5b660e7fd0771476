//! A span of an agent by the conventions that libraries write: agents/importers/spans.py, for the usual forms.
//!
//! A span is left to Python if it needs an attribute that is no text, integer, boolean or list of texts, or has events.

use crate::attributes::{Attribute, Attributes};
use crate::json_value::Json;
use crate::messages::{flat, listed, Message};
use crate::otlp::{next, Value as Sent};

const TIME_MAX: i64 = 253_402_300_799_999_999;

/// What a span is: of a model, of a tool, one that groups others, or none of an agent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Model,
    Tool,
    Part,
    Other,
}

type Kinds = &'static [(&'static str, Kind)];
const KINDS: [(&str, Kinds); 4] = [
    (
        "openinference.span.kind",
        &[
            ("LLM", Kind::Model),
            ("TOOL", Kind::Tool),
            ("RETRIEVER", Kind::Tool),
            ("EMBEDDING", Kind::Tool),
            ("RERANKER", Kind::Tool),
            ("AGENT", Kind::Part),
            ("CHAIN", Kind::Part),
            ("PROMPT", Kind::Part),
        ],
    ),
    (
        "gen_ai.operation.name",
        &[
            ("chat", Kind::Model),
            ("text_completion", Kind::Model),
            ("generate_content", Kind::Model),
            ("execute_tool", Kind::Tool),
            ("embeddings", Kind::Tool),
            ("retrieval", Kind::Tool),
            ("invoke_agent", Kind::Part),
            ("create_agent", Kind::Part),
            ("invoke_workflow", Kind::Part),
        ],
    ),
    (
        "traceloop.span.kind",
        &[("workflow", Kind::Part), ("task", Kind::Part), ("agent", Kind::Part), ("tool", Kind::Tool)],
    ),
    (
        "llm.request.type",
        &[("chat", Kind::Model), ("completion", Kind::Model), ("embedding", Kind::Tool), ("rerank", Kind::Tool)],
    ),
];
const MODELS: [&str; 5] =
    ["gen_ai.response.model", "gen_ai.request.model", "llm.model_name", "llm.response.model", "llm.request.model"];
const RESPONSE_MODELS: [&str; 2] = ["gen_ai.response.model", "llm.response.model"];
const REQUEST_MODELS: [&str; 4] =
    ["gen_ai.request.model", "llm.model_name", "llm.request.model", "embedding.model_name"];
const PROVIDERS: [&str; 5] = ["gen_ai.provider.name", "gen_ai.system", "llm.provider", "llm.system", "llm.vendor"];
const RESPONSE_IDS: [&str; 1] = ["gen_ai.response.id"];
const FINISH_REASONS: [&str; 2] = ["gen_ai.response.finish_reasons", "gen_ai.completion.0.finish_reason"];
const INPUT_TOKENS: [&str; 4] =
    ["gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt", "llm.usage.prompt_tokens"];
const OUTPUT_TOKENS: [&str; 4] = [
    "gen_ai.usage.output_tokens",
    "gen_ai.usage.completion_tokens",
    "llm.token_count.completion",
    "llm.usage.completion_tokens",
];
const CACHED_TOKENS: [&str; 3] = [
    "gen_ai.usage.cache_read.input_tokens",
    "gen_ai.usage.cache_read_input_tokens",
    "llm.token_count.prompt_details.cache_read",
];
const TOOL_NAMES: [&str; 4] = ["gen_ai.tool.name", "tool.name", "tool_call.function.name", "traceloop.entity.name"];
const CALL_IDS: [&str; 2] = ["gen_ai.tool.call.id", "tool_call.id"];
/// What Google ADK writes as the id of a call that failed.
const NO_CALL_ID: &str = "<not specified>";
const ARGUMENTS: [&str; 6] = [
    "gen_ai.tool.call.arguments",
    "tool_call.function.arguments",
    "input.value",
    "traceloop.entity.input",
    "gcp.vertex.agent.tool_call_args",
    "tool.parameters",
];
const RESULTS: [&str; 4] =
    ["gen_ai.tool.call.result", "output.value", "traceloop.entity.output", "gcp.vertex.agent.tool_response"];
const INPUTS: [&str; 2] = ["input.value", "traceloop.entity.input"];
const OUTPUTS: [&str; 2] = ["output.value", "traceloop.entity.output"];
const AGENT_NAMES: [&str; 3] = ["gen_ai.agent.name", "traceloop.workflow.name", "agent.name"];
const ABOUT: [&str; 6] = ["session.id", "user.id", "gen_ai.conversation.id", "gen_ai.agent.id", "tag.tags", "metadata"];
const STEP: &str = "refold.step";
const TOOL_PREFIX: &str = "execute_tool ";
/// In the output of a tool, which is then a message of LangChain.
const TOOL_MESSAGE: &str = "\"tool_call_id\"";

/// A span. Times in microseconds since 1970, if it has them.
#[derive(Debug, Default)]
pub struct Span<'a> {
    pub name: &'a str,
    pub started_at: Option<i64>,
    pub ended_at: Option<i64>,
    pub has_failed: Option<bool>,
    /// The message of its status.
    pub error: &'a str,
    has_events: bool,
    attributes: Attributes<'a>,
}

impl<'a> Span<'a> {
    /// Reads a span that otlp.rs has decoded.
    pub fn read(message: &'a [u8]) -> Option<Self> {
        let (mut span, mut at) = (Span::default(), 0);
        while at < message.len() {
            match next(message, &mut at)? {
                (5, Sent::Bytes(name)) => span.name = std::str::from_utf8(name).ok()?,
                (7, Sent::Fixed64(nanos)) => span.started_at = time(nanos),
                (8, Sent::Fixed64(nanos)) => span.ended_at = time(nanos),
                (9, Sent::Bytes(attribute)) => span.attributes.add(attribute)?,
                (11, _) => span.has_events = true,
                (15, Sent::Bytes(status)) => span.read_status(status)?,
                _ => {}
            }
        }
        Some(span)
    }

    fn read_status(&mut self, message: &'a [u8]) -> Option<()> {
        let mut at = 0;
        while at < message.len() {
            match next(message, &mut at)? {
                (2, Sent::Bytes(text)) => self.error = std::str::from_utf8(text).ok()?,
                (3, Sent::Varint(code)) => {
                    self.has_failed = match code {
                        1 => Some(false),
                        2 => Some(true),
                        _ => None,
                    }
                }
                _ => return None,
            }
        }
        Some(())
    }

    /// Returns the kind. None if Python must read the span.
    pub fn kind(&self) -> Option<Kind> {
        self.kind_named().filter(|kind| *kind == Kind::Other || !self.has_events)
    }

    fn kind_named(&self) -> Option<Kind> {
        for (name, kinds) in KINDS {
            let said = self.attributes.get(name)?.map_or("", Attribute::text);
            if let Some((_, kind)) = kinds.iter().find(|(known, _)| *known == said) {
                return Some(*kind);
            }
        }
        if MODELS.iter().any(|name| self.attributes.has(name)) {
            return Some(Kind::Model);
        }
        Some(if self.attributes.has(STEP) { Kind::Part } else { Kind::Other })
    }

    /// Returns the agent's name; "" if the span has none.
    pub fn agent(&self) -> Option<&'a str> {
        self.attributes.first(&AGENT_NAMES)
    }

    /// Returns what is known about the run, by name.
    pub fn about(&self) -> Option<Vec<(&'static str, Json<'a>)>> {
        let mut found = Vec::new();
        for name in ABOUT {
            if let Some(value) = self.attributes.get(name)? {
                found.push((name, value.plain()?));
            }
        }
        Some(found)
    }

    pub fn input(&self) -> Option<Option<Json<'a>>> {
        self.value(&INPUTS)
    }

    pub fn output(&self) -> Option<Option<Json<'a>>> {
        self.value(&OUTPUTS)
    }

    fn value(&self, names: &[&str]) -> Option<Option<Json<'a>>> {
        match self.attributes.present(names)? {
            None => Some(None),
            Some(found) => found.tree().map(Some),
        }
    }

    // Of a call of a model.

    pub fn model(&self) -> Option<&'a str> {
        self.attributes.first(&MODELS)
    }

    pub fn request_model(&self) -> Option<&'a str> {
        self.attributes.first(&REQUEST_MODELS)
    }

    pub fn response_model(&self) -> Option<&'a str> {
        self.attributes.first(&RESPONSE_MODELS)
    }

    pub fn response_id(&self) -> Option<&'a str> {
        self.attributes.first(&RESPONSE_IDS)
    }

    pub fn provider(&self) -> Option<&'a str> {
        self.attributes.first(&PROVIDERS)
    }

    pub fn finish_reasons(&self) -> Option<Vec<&'a str>> {
        Some(match self.attributes.present(&FINISH_REASONS)? {
            Some(Attribute::Texts(texts)) => texts.clone(),
            Some(Attribute::Text(text)) => vec![*text],
            _ => Vec::new(),
        })
    }

    /// Returns the tokens of the request, of the answer, and those from a cache; 0 if they are not counted.
    pub fn tokens(&self) -> Option<[i64; 3]> {
        let count = |names: &[&str]| self.attributes.count(names);
        Some([count(&INPUT_TOKENS)?, count(&OUTPUT_TOKENS)?, count(&CACHED_TOKENS)?])
    }

    /// Returns the JSON of the messages that a model received, and of its answers.
    pub fn lists(&self) -> Option<[Option<Json<'a>>; 2]> {
        Some([self.value(&["gen_ai.input.messages"])?, self.value(&["gen_ai.output.messages"])?])
    }

    /// Returns the messages that a model received, and its answers. lists: from `lists`.
    pub fn said<'b>(&'b self, [asked, answered]: &'b [Option<Json<'a>>; 2]) -> Option<[Vec<Message<'b>>; 2]> {
        let (mut asked, mut answered) = (listed(asked.as_ref())?, listed(answered.as_ref())?);
        asked.extend(flat(&self.attributes, "llm.input_messages.", "gen_ai.prompt.")?);
        answered.extend(flat(&self.attributes, "llm.output_messages.", "gen_ai.completion.")?);
        answered.retain(|each| each.role != "tool");
        Some([asked, answered])
    }

    // Of a call of a tool.

    /// Returns the name of the tool.
    pub fn tool(&self) -> Option<String> {
        let named = self.attributes.first(&TOOL_NAMES)?;
        if !named.is_empty() {
            return Some(named.to_owned());
        }
        let named = self.name.strip_prefix(TOOL_PREFIX).unwrap_or(self.name);
        if !named.is_empty() {
            return Some(named.to_owned());
        }
        let said = self.attributes.first(&KINDS.map(|(name, _)| name))?;
        match said {
            "" => Some("tool".to_owned()),
            said => said.is_ascii().then(|| said.to_ascii_lowercase()),
        }
    }

    pub fn call_id(&self) -> Option<&'a str> {
        let is_message = |found: &Attribute| found.text().contains(TOOL_MESSAGE);
        if self.attributes.get("output.value")?.is_some_and(is_message) {
            return None;
        }
        let found = self.attributes.first(&CALL_IDS)?;
        Some(if found == NO_CALL_ID { "" } else { found })
    }

    pub fn arguments(&self) -> Option<Option<Json<'a>>> {
        self.value(&ARGUMENTS)
    }

    pub fn result(&self) -> Option<Option<&'a str>> {
        match self.attributes.present(&RESULTS)? {
            None => Some(None),
            Some(Attribute::Text(text)) => Some(Some(text)),
            Some(_) => None,
        }
    }
}

fn time(nanos: u64) -> Option<i64> {
    let micros = i64::try_from(nanos / 1000).ok()?;
    (nanos != 0 && micros <= TIME_MAX).then_some(micros)
}
