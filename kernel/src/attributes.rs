//! The attributes of a span or a resource, in protobuf. One of an unusual value is left to Python where it is needed.

use crate::json_value::Json;
use crate::otlp::{next, Value as Sent};

/// Counts of tokens are below this.
const COUNT_END: i64 = 1 << 53;
/// The service of a resource that names none.
const NO_SERVICE: &str = "otlp";

/// The value of an attribute. Unusual: any other.
#[derive(Debug)]
pub enum Attribute<'a> {
    Text(&'a str),
    Integer(i64),
    Boolean(bool),
    Texts(Vec<&'a str>),
    Unusual,
}

impl<'a> Attribute<'a> {
    pub fn text(&self) -> &'a str {
        match self {
            Attribute::Text(text) => text,
            _ => "",
        }
    }

    /// Returns the value as it is; None if it is unusual.
    pub fn plain(&self) -> Option<Json<'a>> {
        Some(match self {
            Attribute::Text(text) => Json::Text((*text).into()),
            Attribute::Integer(number) => Json::Integer(*number),
            Attribute::Boolean(truth) => Json::Boolean(*truth),
            Attribute::Texts(texts) => Json::List(texts.iter().map(|text| Json::Text((*text).into())).collect()),
            Attribute::Unusual => return None,
        })
    }

    /// Returns the value; that of a text that is JSON: `_tree` of spans.py. None if Python must read it.
    pub fn tree(&self) -> Option<Json<'a>> {
        match self {
            Attribute::Text(text) if text.starts_with(['{', '[', '"']) => Json::read(text),
            _ => self.plain(),
        }
    }
}

/// Attributes in the order they were sent. Of two with a name, the second counts.
#[derive(Debug, Default)]
pub struct Attributes<'a>(Vec<(&'a str, Attribute<'a>)>);

impl<'a> Attributes<'a> {
    /// Returns each, by name.
    pub fn each(&self) -> impl Iterator<Item = &(&'a str, Attribute<'a>)> {
        self.0.iter()
    }

    /// Adds one; None if it is malformed.
    pub fn add(&mut self, message: &'a [u8]) -> Option<()> {
        let (mut key, mut value, mut at) = ("", Attribute::Unusual, 0);
        while at < message.len() {
            match next(message, &mut at)? {
                (1, Sent::Bytes(text)) => key = std::str::from_utf8(text).ok()?,
                (2, Sent::Bytes(message)) => value = attribute(message)?,
                _ => return None,
            }
        }
        if !key.is_empty() {
            self.0.push((key, value));
        }
        Some(())
    }

    /// Returns whether there is one, of any value.
    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(key, _)| *key == name)
    }

    /// Returns the attribute, if there is one. None if it is unusual.
    pub fn get(&self, name: &str) -> Option<Option<&Attribute<'a>>> {
        match self.0.iter().rev().find(|(key, _)| *key == name) {
            Some((_, Attribute::Unusual)) => None,
            found => Some(found.map(|(_, value)| value)),
        }
    }

    /// Returns the first of the attributes that is there.
    pub fn present(&self, names: &[&str]) -> Option<Option<&Attribute<'a>>> {
        for name in names {
            if let Some(found) = self.get(name)? {
                return Some(Some(found));
            }
        }
        Some(None)
    }

    /// Returns the first text that is not empty, else "".
    pub fn first(&self, names: &[&str]) -> Option<&'a str> {
        for name in names {
            let found = self.get(name)?.map_or("", Attribute::text);
            if !found.is_empty() {
                return Some(found);
            }
        }
        Some("")
    }

    /// Returns the first count that is there, else 0.
    pub fn count(&self, names: &[&str]) -> Option<i64> {
        for name in names {
            if let Some(Attribute::Integer(count @ 0..COUNT_END)) = self.get(name)? {
                return Some(*count);
            }
        }
        Some(0)
    }
}

fn attribute(message: &[u8]) -> Option<Attribute<'_>> {
    let mut at = 0;
    if message.is_empty() {
        return Some(Attribute::Unusual);
    }
    Some(match next(message, &mut at)? {
        (1, Sent::Bytes(text)) => Attribute::Text(std::str::from_utf8(text).ok()?),
        (2, Sent::Varint(number)) => Attribute::Boolean(number != 0),
        (3, Sent::Varint(number)) => Attribute::Integer(number.cast_signed()),
        (5, Sent::Bytes(list)) => {
            let (mut texts, mut at) = (Vec::new(), 0);
            while at < list.len() {
                let (1, Sent::Bytes(item)) = next(list, &mut at)? else { return None };
                let Attribute::Text(text) = attribute(item)? else { return Some(Attribute::Unusual) };
                texts.push(text);
            }
            Attribute::Texts(texts)
        }
        _ => Attribute::Unusual,
    })
}

/// Returns the name of a resource's service. message: of field 1 of `ResourceSpans`. None if Python must read it.
pub fn service(message: &[u8]) -> Option<&str> {
    let (mut attributes, mut at) = (Attributes::default(), 0);
    while at < message.len() {
        if let (1, Sent::Bytes(attribute)) = next(message, &mut at)? {
            attributes.add(attribute)?;
        }
    }
    let named = attributes.first(&["service.name"])?;
    Some(if named.is_empty() { NO_SERVICE } else { named })
}
