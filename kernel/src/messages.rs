//! Messages of models in attributes: as JSON, and under numbered names.

use std::collections::BTreeMap;

use crate::attributes::{Attribute, Attributes};
use crate::json_value::Json;

/// A number in a name has at most so many digits.
const NUMBER_DIGITS_MAX: usize = 6;
const ROLE: &str = "user";
const TOOL: &str = "tool";

/// A message, in the form that a model wrote or received.
#[derive(Debug)]
pub struct Message<'a> {
    pub role: &'a str,
    pub content: Option<String>,
    pub rationale: String,
    pub calls: Vec<Call<'a>>,
}

#[derive(Debug, Default)]
pub struct Call<'a> {
    pub tool: &'a str,
    pub arguments: Option<Arguments<'a>>,
    pub id: &'a str,
}

/// Arguments of a call: a value, or a text that may be JSON.
#[derive(Debug)]
pub enum Arguments<'a> {
    Tree(&'a Json<'a>),
    Text(&'a str),
}

/// Returns the messages of a list: {role, parts}, or {role, content} with a text. None if Python must read one.
pub fn listed<'a>(given: Option<&'a Json<'a>>) -> Option<Vec<Message<'a>>> {
    let Some(Json::List(given)) = given else { return Some(Vec::new()) };
    let mut found = Vec::with_capacity(given.len());
    for each in given.iter().filter(|each| matches!(each, Json::Object(_))) {
        add_message(&mut found, each)?;
    }
    Some(found)
}

fn add_message<'a>(found: &mut Vec<Message<'a>>, given: &'a Json<'a>) -> Option<()> {
    let text = |value: &'a Json<'a>, key: &str| value.member(key).and_then(Json::text);
    let role = text(given, "role").filter(|role| !role.is_empty()).unwrap_or(ROLE);
    let Some(Json::List(parts)) = given.member("parts") else {
        let has_more = given.member("tool_calls").is_some() || given.member("reasoning").is_some();
        let content = text(given, "content").filter(|_| !has_more)?;
        found.push(Message { role, content: Some(content.to_owned()), rationale: String::new(), calls: Vec::new() });
        return Some(());
    };
    let (mut texts, mut thoughts, mut calls, mut results) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for part in parts {
        match text(part, "type")? {
            "text" => texts.push(text(part, "content")?),
            "reasoning" => thoughts.push(text(part, "content")?),
            "tool_call" if part.member("tool_call").is_none() && part.member("function").is_none() => {
                let tool = text(part, "name").filter(|name| !name.is_empty()).unwrap_or(TOOL);
                let arguments = match part.member("arguments") {
                    None | Some(Json::Null) => None,
                    Some(Json::Text(text)) => Some(Arguments::Text(text)),
                    Some(tree) => Some(Arguments::Tree(tree)),
                };
                calls.push(Call { tool, arguments, id: text(part, "id").unwrap_or("") });
            }
            "tool_call_response" => results += 1,
            _ => return None,
        }
    }
    if !texts.is_empty() || !thoughts.is_empty() || !calls.is_empty() || results == 0 {
        let content = (!texts.is_empty()).then(|| texts.join("\n"));
        found.push(Message { role, content, rationale: thoughts.join("\n"), calls });
    }
    let result = || Message { role: TOOL, content: None, rationale: String::new(), calls: Vec::new() };
    found.extend((0..results).map(|_| result()));
    Some(())
}

/// A message whose members are attributes. Each may be there once.
#[derive(Default)]
struct FlatMessage<'a> {
    role: Option<&'a str>,
    content: Option<&'a str>,
    calls: BTreeMap<u32, FlatCall<'a>>,
}

#[derive(Default)]
struct FlatCall<'a> {
    id: Option<&'a str>,
    tool: Option<&'a str>,
    arguments: Option<&'a str>,
}

/// Returns the messages under numbered names: after the prefix of OpenInference, then of OpenLLMetry. None if Python must
/// read one.
pub fn flat<'a>(attributes: &Attributes<'a>, wrapped: &str, plain: &str) -> Option<Vec<Message<'a>>> {
    let mut found = Vec::new();
    for (prefix, is_wrapped) in [(wrapped, true), (plain, false)] {
        let mut numbered: BTreeMap<u32, FlatMessage> = BTreeMap::new();
        for (name, value) in attributes.each() {
            let Some(name) = name.strip_prefix(prefix) else { continue };
            let (number, name) = name.split_once('.')?;
            let name = if is_wrapped { name.strip_prefix("message.")? } else { name };
            numbered.entry(index(number)?).or_default().set(name, value, is_wrapped)?;
        }
        found.extend(numbered.into_values().map(FlatMessage::message));
    }
    Some(found)
}

fn index(number: &str) -> Option<u32> {
    let is_index = number.len() <= NUMBER_DIGITS_MAX && number.bytes().all(|byte| byte.is_ascii_digit());
    (is_index && (number == "0" || !number.starts_with('0'))).then(|| number.parse().ok())?
}

/// Sets a member to a text; None if it is there already, or the value is no text.
fn set<'a>(member: &mut Option<&'a str>, value: &Attribute<'a>) -> Option<()> {
    let Attribute::Text(text) = value else { return None };
    member.replace(text).is_none().then_some(())
}

impl<'a> FlatMessage<'a> {
    fn set(&mut self, name: &str, value: &Attribute<'a>, is_wrapped: bool) -> Option<()> {
        match name {
            "role" => return set(&mut self.role, value),
            "content" => return set(&mut self.content, value),
            "name" | "tool_call_id" | "finish_reason" => return Some(()), // no observation has these
            _ => {}
        }
        let (number, name) = name.strip_prefix("tool_calls.")?.split_once('.')?;
        let call = self.calls.entry(index(number)?).or_default();
        let name = if is_wrapped { name.strip_prefix("tool_call.")? } else { name };
        let name = if is_wrapped && name != "id" { name.strip_prefix("function.")? } else { name };
        match name {
            "id" => set(&mut call.id, value),
            "name" => set(&mut call.tool, value),
            "arguments" => set(&mut call.arguments, value),
            _ => None,
        }
    }

    fn message(self) -> Message<'a> {
        let named = |name: Option<&'a str>, default| name.filter(|name| !name.is_empty()).unwrap_or(default);
        let call = |call: FlatCall<'a>| Call {
            tool: named(call.tool, TOOL),
            arguments: call.arguments.map(Arguments::Text),
            id: call.id.unwrap_or(""),
        };
        Message {
            role: named(self.role, ROLE),
            content: self.content.map(str::to_owned),
            rationale: String::new(),
            calls: self.calls.into_values().map(call).collect(),
        }
    }
}
