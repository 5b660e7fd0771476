//! Observations as they are written: fields of a patch, texts that may be too large for it, bytes and ids.

use sha2::{Digest, Sha256};

use crate::door::write;
use crate::layout::Layout;
use crate::observation::{self, Observation, Source};
use crate::value::Value;

/// An observation: its entity, its id and its framed bytes.
pub struct Made {
    pub entity: String,
    pub id: [u8; 32],
    pub data: Vec<u8>,
}

/// What one span states, and the contents that are too large for it, with their SHA-256.
#[derive(Default)]
pub struct Stated {
    pub made: Vec<Made>,
    pub contents: Vec<([u8; 32], Vec<u8>)>,
}

/// Writes the observations of one span.
pub struct Writer<'a> {
    pub agent: &'a str,
    pub run: &'a str,
    pub tool: &'a str,
    pub stated: Stated,
}

impl Writer<'_> {
    /// Writes the next observation. The first causes all others.
    pub fn write(&mut self, layout: &Layout, entity: String, at: i64, patch: Patch) -> Option<()> {
        let made = &mut self.stated.made;
        let mut patch = patch.fields;
        patch.sort_unstable_by_key(|(place, _)| *place);
        let observation = Observation {
            entity: &entity,
            kind: observation::Kind::Assert,
            observed_at: at,
            priority: 0,
            source: Source {
                agent: self.agent,
                run: self.run,
                step: "",
                tool: self.tool,
                seq: i64::try_from(made.len()).ok()?,
            },
            causes: made.first().map(|first| first.id.as_slice()).into_iter().collect(),
            patch,
            cleared: Vec::new(),
            retracts: Vec::new(),
            link: None,
            subject: "",
        };
        let mut data = Vec::with_capacity(512);
        write(layout, &observation, &mut data)?;
        let id = observation.id(layout);
        made.push(Made { entity, id, data });
        Some(())
    }
}

/// A text that is kept in a value, or, if it is too large, in a content that the value names.
pub enum Kept<'a> {
    Inline(&'a str),
    Blob([u8; 32], usize, &'static str),
}

impl Kept<'_> {
    pub fn value(&self) -> Option<Value<'_>> {
        Some(match self {
            Kept::Inline(text) => Value::Text(text),
            Kept::Blob(digest, size, media_type) => Value::Map(vec![
                ("hash", Value::Bytes(digest)),
                ("size", Value::Integer(i128::try_from(*size).ok()?)),
                ("media_type", Value::Text(media_type)),
            ]),
        })
    }
}

/// Returns the value of a map.
pub fn members<'a>(kept: &'a [(&'a str, Kept<'a>)]) -> Option<Value<'a>> {
    kept.iter().map(|(name, kept)| Some((*name, kept.value()?))).collect::<Option<Vec<_>>>().map(Value::Map)
}

/// The number of bytes of a text's deterministic CBOR.
fn size_of(text: &str) -> usize {
    text.len()
        + match text.len() {
            0..24 => 1,
            24..256 => 2,
            256..65_536 => 3,
            _ => 5,
        }
}

/// The fields of an observation.
pub struct Patch<'a> {
    layout: &'a Layout,
    fields: Vec<(usize, Value<'a>)>,
}

impl<'a> Patch<'a> {
    pub fn new(layout: &'a Layout) -> Self {
        Patch { layout, fields: Vec::with_capacity(16) }
    }

    /// Sets a field; None if Python must check the value, because it may be too large, or not of the field's type.
    pub fn put(&mut self, name: &str, value: Value<'a>) -> Option<()> {
        let place = *self.layout.places.get(name)?;
        let field = &self.layout.fields[place];
        let fits = |text: &str| size_of(text) <= field.inline_bytes;
        let is_small = match &value {
            Value::Text(text) => fits(text),
            Value::Map(members) => members.iter().all(|(_, each)| match each {
                Value::Text(text) => fits(text),
                _ => true, // a blob
            }),
            Value::List(items) => items.iter().map(weight).sum::<usize>() <= field.inline_bytes,
            _ => true,
        };
        (is_small && field.patch.holds(&value)).then(|| self.fields.push((place, value)))
    }

    /// Sets a field, if there is a value.
    pub fn put_some(&mut self, name: &str, value: Option<Value<'a>>) -> Option<()> {
        value.map_or(Some(()), |value| self.put(name, value))
    }

    /// Sets a field, unless the text is empty.
    pub fn put_text(&mut self, name: &str, text: &'a str) -> Option<()> {
        self.put_some(name, (!text.is_empty()).then_some(Value::Text(text)))
    }

    /// Returns a text as a field keeps it, or a member of a map.
    pub fn keep<'b>(&self, name: &str, text: &'b str, media_type: &'static str, stated: &mut Stated) -> Kept<'b> {
        let inline_bytes = self.layout.places.get(name).map_or(0, |place| self.layout.fields[*place].inline_bytes);
        if size_of(text) <= inline_bytes {
            return Kept::Inline(text);
        }
        let digest: [u8; 32] = Sha256::digest(text).into();
        stated.contents.push((digest, text.as_bytes().to_vec()));
        Kept::Blob(digest, text.len(), media_type)
    }

    /// As `keep`, if there is a text.
    pub fn keep_some<'b>(
        &self,
        name: &str,
        text: Option<&'b str>,
        media_type: &'static str,
        stated: &mut Stated,
    ) -> Option<Kept<'b>> {
        text.map(|text| self.keep(name, text, media_type, stated))
    }
}

/// An upper bound of the bytes of a value's CBOR.
fn weight(value: &Value) -> usize {
    9 + match value {
        Value::Text(text) => text.len(),
        Value::List(items) => items.iter().map(weight).sum(),
        Value::Map(members) => members.iter().map(|(name, each)| name.len() + 9 + weight(each)).sum(),
        _ => 0,
    }
}

/// Returns the value of a text that is kept, if there is one.
pub fn kept<'a>(kept: &'a Option<Kept>) -> Option<Option<Value<'a>>> {
    kept.as_ref().map_or(Some(None), |kept| kept.value().map(Some))
}
