//! The observations of a received span: agents/adapters/otlp/observed.py, for the usual forms.
//!
//! The entities, times, sources, causes and values are the same, and so are the bytes and ids. What is unusual is left
//! to Python: it decides which spans cannot be observed, and why.

use sha2::{Digest, Sha256};

use crate::attributes::service;
use crate::conventions::{Kind, Span};
use crate::json_value::{may_be_json, Json};
use crate::layout::Layout;
use crate::messages::{Arguments, Message};
use crate::otlp::{self, write_text, Scoped};
use crate::stated::{kept, members, Kept, Patch, Stated, Writer};
use crate::unless_panicked;
use crate::value::Value;

/// When an origin is observed, and a span without times: microseconds since 1970.
const NO_TIME_START: i64 = 946_684_800_000_000;
const LABEL_CHARACTERS_MAX: usize = 200;
const DIGEST_BYTES: usize = 16;
const RECEIVED: &str = "otlp-received";
const JSON: &str = "application/json";
const TEXT: &str = "text/plain";

/// The layouts of the types of a received span.
pub struct Layouts<'a> {
    pub step: &'a Layout,
    pub action: &'a Layout,
    pub run: &'a Layout,
    pub document: &'a Layout,
}

/// The spans of one scope. origin: the digest of its resource and itself, and what both state. count: how many spans are
/// in `stated`. left: trace id, id and canonical JSON of the spans that Python must observe.
pub struct ObservedScope {
    pub resource: String,
    pub scope: String,
    pub origin: Option<(String, Stated)>,
    pub count: usize,
    pub stated: Stated,
    pub left: Vec<(String, String, String)>,
}

/// Observes the spans of one scope.
pub fn observed(layouts: &Layouts, scoped: Scoped) -> ObservedScope {
    let origin = || Origin::of(layouts.document, scoped.resource_message, &scoped.resource, &scoped.scope);
    let origin = unless_panicked(origin);
    let (mut count, mut all, mut left) = (0, Stated::default(), Vec::new());
    for span in scoped.spans {
        let observe = || stated(layouts, origin.as_ref()?, &span);
        if let Some(stated) = unless_panicked(observe) {
            count += 1;
            all.made.extend(stated.made);
            all.contents.extend(stated.contents);
        } else {
            left.push((span.trace_id, span.id, span.text));
        }
    }
    let origin = origin.map(|origin| (origin.digest, origin.stated));
    ObservedScope { resource: scoped.resource, scope: scoped.scope, origin, count, stated: all, left }
}

/// A resource and a scope: the digest of both, the name of the service, and their observation.
struct Origin<'a> {
    digest: String,
    service: &'a str,
    stated: Stated,
}

impl<'a> Origin<'a> {
    /// resource: its message; None if Python must observe its spans. resource_text, scope: their canonical JSON.
    fn of(document: &Layout, resource: &'a [u8], resource_text: &str, scope: &str) -> Option<Self> {
        let both = format!("{{\"resource\":{resource_text},\"scope\":{scope}}}");
        let digest = otlp::hex(&Sha256::digest(both)[..DIGEST_BYTES]);
        let service = label(service(resource)?)?;
        let mut writer = Writer { agent: service, run: "", tool: "", stated: Stated::default() };
        let fields = [("resource", resource_text), ("scope", scope)];
        let mut patch = Patch::new(document);
        let kept = fields.map(|(name, text)| (name, patch.keep("fields", text, JSON, &mut writer.stated)));
        patch.put("kind", Value::Text("origin"))?;
        patch.put("fields", members(&kept)?)?;
        writer.write(document, format!("document/origin-{digest}"), NO_TIME_START, patch)?;
        Some(Origin { digest, service, stated: writer.stated })
    }
}

/// Returns what a span states; None if Python must observe it.
fn stated(layouts: &Layouts, origin: &Origin, sent: &otlp::Span) -> Option<Stated> {
    let span = Span::read(sent.message)?;
    let kind = span.kind()?;
    let named = span.agent()?;
    let agent = label(if named.is_empty() { origin.service } else { named })?;
    let tool = if kind == Kind::Tool { span.tool()? } else { String::new() };
    let begin = span.started_at.or(span.ended_at).unwrap_or(NO_TIME_START);
    let end = begin.max(span.ended_at.unwrap_or(0));
    let writer = Writer { agent, run: &sent.trace_id, tool: label(&tool)?, stated: Stated::default() };
    let (trace_id, id, written) = (&sent.trace_id, &sent.id, &sent.text);
    let facts = Facts { span, kind, trace_id, id, written, origin: &origin.digest, begin, end };
    facts.write(layouts, writer)
}

/// A name in a form that every source may have; None if Python must shorten it or replace characters.
fn label(name: &str) -> Option<&str> {
    let is_label = !name.chars().any(char::is_control) && name.chars().count() <= LABEL_CHARACTERS_MAX;
    is_label.then_some(name)
}

/// What a span states.
struct Facts<'a> {
    span: Span<'a>,
    kind: Kind,
    trace_id: &'a str,
    id: &'a str,
    written: &'a str,
    origin: &'a str,
    begin: i64,
    end: i64,
}

/// Values of a run, an action or a step that are written before the patch that borrows them.
#[derive(Default)]
struct Texts {
    input: Option<String>,
    output: Option<String>,
    about: Vec<(&'static str, String)>,
}

impl Facts<'_> {
    fn write(&self, layouts: &Layouts, mut writer: Writer) -> Option<Stated> {
        match self.kind {
            Kind::Model => {
                let lists = self.span.lists()?;
                let [asked, answered] = self.span.said(&lists)?;
                let answer = Answer::of(&answered)?;
                self.write_step(layouts.step, &mut writer, &answer)?;
                let texts = self.texts(&asked, answer.message.as_deref())?;
                self.write_run(layouts.run, &mut writer, &texts, true, true)?;
            }
            Kind::Tool => {
                self.write_action(layouts.action, &mut writer)?;
                self.write_run(
                    layouts.run,
                    &mut writer,
                    &Texts { about: self.about()?, ..Texts::default() },
                    true,
                    true,
                )?;
            }
            Kind::Part => {
                self.write_document(layouts.document, &mut writer)?;
                let texts = self.texts(&[], None)?;
                self.write_run(layouts.run, &mut writer, &texts, true, false)?;
                self.write_run(layouts.run, &mut writer, &texts, false, true)?;
            }
            Kind::Other => {
                self.write_document(layouts.document, &mut writer)?;
                self.write_place(layouts.document, &mut writer)?;
            }
        }
        Some(writer.stated)
    }

    fn has_failed(&self) -> bool {
        self.span.has_failed == Some(true)
    }

    fn is_failed_call(&self) -> bool {
        self.kind == Kind::Model && self.has_failed()
    }

    fn outcome(&self) -> Value<'static> {
        Value::Text(match self.span.has_failed {
            None => "unknown",
            Some(true) => "failed",
            Some(false) => "succeeded",
        })
    }

    fn ended_at(&self) -> Option<Value<'static>> {
        self.span.ended_at.map(|_| Value::Integer(self.end.into()))
    }

    fn started_at(&self) -> Option<Value<'static>> {
        self.span.started_at.map(|at| Value::Integer(at.into()))
    }

    fn about(&self) -> Option<Vec<(&'static str, String)>> {
        self.span.about()?.into_iter().map(|(name, value)| Some((name, value.canonical()?))).collect()
    }

    /// The run's input and output, and what is known about it. answered: the text of a model's answer.
    fn texts(&self, asked: &[Message], answered: Option<&str>) -> Option<Texts> {
        let input = match self.span.input()? {
            Some(input) => Some(input.canonical()?),
            None => asked.iter().find(|each| each.role == "user").and_then(|each| each.content.as_deref()).map(quoted),
        };
        let output = match self.span.output()? {
            Some(output) if !self.is_failed_call() => Some(output.canonical()?),
            _ => answered.map(quoted),
        };
        Some(Texts { input, output, about: self.about()? })
    }

    fn write_document(&self, layout: &Layout, writer: &mut Writer) -> Option<()> {
        let mut patch = Patch::new(layout);
        let origin = quoted(self.origin);
        let kept =
            [("span", patch.keep("fields", self.written, JSON, &mut writer.stated)), ("origin", Kept::Inline(&origin))];
        patch.put("kind", Value::Text("span"))?;
        patch.put("fields", members(&kept)?)?;
        writer.write(layout, format!("document/span-{}-{}", self.trace_id, self.id), self.begin, patch)
    }

    /// Writes the span's place in the list of its trace.
    fn write_place(&self, layout: &Layout, writer: &mut Writer) -> Option<()> {
        let mut patch = Patch::new(layout);
        patch.put("kind", Value::Text("trace"))?;
        patch.put("fields", Value::Map(vec![(self.id, Value::Text("\"other\""))]))?;
        writer.write(layout, format!("document/trace-{}", self.trace_id), self.begin, patch)
    }

    /// Writes what a run states at a begin, at an end, or both.
    fn write_run(&self, layout: &Layout, writer: &mut Writer, texts: &Texts, begun: bool, ended: bool) -> Option<()> {
        let span = &self.span;
        let mut patch = Patch::new(layout);
        let about: Vec<_> = texts
            .about
            .iter()
            .filter(|_| begun)
            .map(|(name, text)| (*name, patch.keep("metadata", text, JSON, &mut writer.stated)))
            .collect();
        let (input, output) = (texts.input.as_deref().filter(|_| begun), texts.output.as_deref().filter(|_| ended));
        let input = patch.keep_some("input", input, JSON, &mut writer.stated);
        let output = patch.keep_some("output", output, JSON, &mut writer.stated);
        let title = patch.keep_some("title", ended.then_some(span.name), TEXT, &mut writer.stated);
        if begun {
            patch.put("agent", Value::Text(writer.agent))?;
            patch.put("imported_from", Value::Text(RECEIVED))?;
            let kind = match self.kind {
                Kind::Model => "model",
                Kind::Tool => "tool",
                Kind::Part | Kind::Other => "part",
            };
            patch.put("spans", Value::Map(vec![(self.id, Value::Text(kind))]))?;
            match self.started_at() {
                None => patch.put("synthetic_time", Value::Boolean(true))?,
                started_at => patch.put_some("started_at", started_at)?,
            }
            if !about.is_empty() {
                patch.put("metadata", members(&about)?)?;
            }
            patch.put_some("input", kept(&input)?)?;
        }
        if ended {
            patch.put("status", Value::Text("ended"))?;
            patch.put("outcome", self.outcome())?;
            patch.put_some("title", kept(&title)?)?;
            patch.put_some("ended_at", self.ended_at())?;
            patch.put_some("output", kept(&output)?)?;
            if self.kind == Kind::Model {
                let [input, output, _] = span.tokens()?;
                patch.put_some("input_tokens", positive(input))?;
                patch.put_some("output_tokens", positive(output))?;
                patch.put_text("model", span.model()?)?;
                patch.put_text("model_provider", span.provider()?)?;
            }
        }
        let at = if ended { self.end } else { self.begin };
        writer.write(layout, format!("run/{}", self.trace_id), at, patch)
    }

    fn write_step(&self, layout: &Layout, writer: &mut Writer, answer: &Answer) -> Option<()> {
        let span = &self.span;
        let mut patch = Patch::new(layout);
        let output = if answer.is_given || self.is_failed_call() { None } else { span.output()? };
        let output = match output {
            Some(Json::Text(text)) => Some(text.into_owned()),
            Some(output) => Some(output.canonical()?),
            None => None,
        };
        let decision = if answer.is_given { answer.decision.as_str() } else { "reply" };
        let message = if answer.is_given { answer.message.as_deref() } else { output.as_deref() };
        let message = message.filter(|text| !text.is_empty());
        let message = patch.keep_some("message", message, TEXT, &mut writer.stated);
        let rationale = patch.keep_some("rationale", answer.rationale.as_deref(), TEXT, &mut writer.stated);
        let decision = patch.keep("decision", decision, TEXT, &mut writer.stated);
        let written = patch.keep("span", self.written, JSON, &mut writer.stated);
        patch.put("run", Value::Text(self.trace_id))?;
        patch.put("agent", Value::Text(writer.agent))?;
        patch.put("name", Value::Text(span.name))?;
        patch.put("status", Value::Text("committed"))?;
        patch.put("outcome", self.outcome())?;
        patch.put_some("started_at", self.started_at())?;
        patch.put_some("ended_at", self.ended_at())?;
        if answer.is_given || output.is_some() {
            patch.put("decision", decision.value()?)?;
            patch.put_some("message", kept(&message)?)?;
            patch.put_some("rationale", kept(&rationale)?)?;
        }
        if !answer.calls.is_empty() {
            patch.put("calls", answer.calls())?;
        }
        patch.put("model_calls", Value::List(vec![self.model_call()?]))?;
        if self.has_failed() {
            patch.put("failure", self.failure(span.error)?)?;
        }
        patch.put("span", written.value()?)?;
        patch.put("span_origin", Value::Text(self.origin))?;
        writer.write(layout, format!("step/{}#{}", self.trace_id, self.id), self.end, patch)
    }

    fn model_call(&self) -> Option<Value<'_>> {
        let span = &self.span;
        let texts = [
            ("provider", span.provider()?),
            ("model", span.request_model()?),
            ("response_model", span.response_model()?),
            ("response_id", span.response_id()?),
        ];
        let tokens = ["input_tokens", "output_tokens", "cached_tokens"].into_iter().zip(span.tokens()?);
        let reasons = span.finish_reasons()?;
        let mut call: Vec<_> = texts
            .into_iter()
            .filter(|(_, text)| !text.is_empty())
            .map(|(name, text)| (name, Value::Text(text)))
            .collect();
        if !reasons.is_empty() {
            call.push(("finish_reasons", Value::List(reasons.into_iter().map(Value::Text).collect())));
        }
        call.extend(tokens.filter_map(|(name, count)| Some((name, positive(count)?))));
        call.extend(span.started_at.and_then(positive).map(|at| ("started_at", at)));
        Some(Value::Map(call))
    }

    /// What a failed step or action states of its failure; None if it may be too large.
    fn failure<'b>(&self, message: &'b str) -> Option<Value<'b>> {
        let mut failure: Vec<_> = self.ended_at().map(|at| ("at", at)).into_iter().collect();
        if !message.is_empty() {
            failure.push(("message", Value::Text(message)));
        }
        (message.len() <= FAILURE_BYTES_MAX).then_some(Value::Map(failure))
    }

    fn write_action(&self, layout: &Layout, writer: &mut Writer) -> Option<()> {
        let span = &self.span;
        let mut patch = Patch::new(layout);
        let tool = span.tool()?;
        let output = span.result()?;
        let arguments = match span.arguments()? {
            Some(arguments) => Some(arguments.canonical()?),
            None => None,
        };
        let inputs = patch.keep_some("inputs", arguments.as_deref(), JSON, &mut writer.stated);
        let kept_output = patch.keep_some("output", output, TEXT, &mut writer.stated);
        let written = patch.keep("span", self.written, JSON, &mut writer.stated);
        patch.put("tool", Value::Text(&tool))?;
        patch.put("agent", Value::Text(writer.agent))?;
        patch.put("run", Value::Text(self.trace_id))?;
        let status = match (output, self.has_failed()) {
            (_, true) => "failed",
            (None, false) => "unknown",
            (Some(_), false) => "succeeded",
        };
        patch.put("status", Value::Text(status))?;
        patch.put_some("started_at", self.started_at())?;
        patch.put_some("ended_at", self.ended_at())?;
        patch.put_text("call_id", span.call_id()?)?;
        patch.put_some("inputs", kept(&inputs)?)?;
        if let Some(output) = output {
            patch.put_some("output", kept(&kept_output)?)?;
            patch.put("output_bytes", Value::Integer(i128::try_from(output.len()).ok()?))?;
            let is_json = may_be_json(output) && Json::read(output).map(|_| true)?;
            patch.put("output_type", Value::Text(if is_json { JSON } else { TEXT }))?;
        }
        if self.has_failed() {
            let message = if span.error.is_empty() { output.unwrap_or("") } else { span.error };
            patch.put("error", self.failure(message)?)?;
        }
        patch.put("span", written.value()?)?;
        patch.put("span_origin", Value::Text(self.origin))?;
        writer.write(layout, format!("action/{}#{}", self.trace_id, self.id), self.end, patch)
    }
}

/// A longer message of a failure is left to Python, because the failure as a whole may be a blob.
const FAILURE_BYTES_MAX: usize = 512;

fn positive(count: i64) -> Option<Value<'static>> {
    (count > 0).then(|| Value::Integer(count.into()))
}

fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    write_text(&mut out, text);
    out
}

/// What a step states about a model's answer.
struct Answer<'a> {
    is_given: bool,
    decision: String,
    message: Option<String>,
    rationale: Option<String>,
    calls: Vec<(&'a str, Option<String>, &'a str)>,
}

impl<'a> Answer<'a> {
    fn of(messages: &[Message<'a>]) -> Option<Self> {
        let joined = |texts: &mut dyn Iterator<Item = &str>| {
            let texts: Vec<&str> = texts.filter(|text| !text.is_empty()).collect();
            (!texts.is_empty()).then(|| texts.join("\n"))
        };
        let mut calls = Vec::new();
        for call in messages.iter().flat_map(|each| &each.calls) {
            let inputs = match call.arguments {
                Some(Arguments::Text(text)) => match Json::read_or_text(text)? {
                    Json::Null => None,
                    arguments => Some(arguments.canonical()?),
                },
                Some(Arguments::Tree(arguments)) => Some(arguments.canonical()?),
                None => None,
            };
            calls.push((call.tool, inputs, call.id));
        }
        let tools: Vec<&str> = calls.iter().map(|(tool, _, _)| *tool).collect();
        Some(Answer {
            is_given: !messages.is_empty(),
            decision: if tools.is_empty() { "reply".to_owned() } else { format!("call {}", tools.join(", ")) },
            message: joined(&mut messages.iter().filter_map(|each| each.content.as_deref())),
            rationale: joined(&mut messages.iter().map(|each| each.rationale.as_str())),
            calls,
        })
    }

    fn calls(&self) -> Value<'_> {
        Value::List(self.calls.iter().enumerate().map(|(place, each)| called(place, each)).collect())
    }
}

/// Returns a call of a step. place: from 0.
fn called<'a>(place: usize, (tool, inputs, id): &'a (&str, Option<String>, &str)) -> Value<'a> {
    let mut call = vec![("position", Value::Integer(place as i128 + 1)), ("tool", Value::Text(tool))];
    call.extend(inputs.as_deref().map(|text| ("inputs", Value::Text(text))));
    call.extend((!id.is_empty()).then_some(("call_id", Value::Text(id))));
    Value::Map(call)
}
