//! Requests of OTLP with spans as canonical JSON: agents/adapters/otlp/requests.py without a tree in between.
//!
//! The text of a span, a resource or a scope is the one that `json_text` of avro/canonical.py returns for the tree of
//! trees.py. A request is left to Python as a whole if it is malformed, has fields that are not in the tables below,
//! has a field twice that may be there once, or has a value that the two might write in different ways.

use std::fmt::Write;

/// How a field's value is written. Integers of 64 bits become text, as in protobuf's JSON.
enum Shape {
    Text,
    Hex,
    Base64,
    Fixed64,
    Fixed32,
    Int64,
    Uint32,
    Enum,
    Boolean,
    Double,
    One(&'static Message),
    Many(&'static Message),
}

/// When a field is written: if its value is not the default, if it was sent, or always.
#[derive(PartialEq)]
enum Presence {
    NotDefault,
    Sent,
    Always,
}

struct Field(u64, &'static str, Shape, Presence);

/// The fields of a message, in the order of their names in JSON. is_choice: only one may be sent.
struct Message {
    fields: &'static [Field],
    is_choice: bool,
}

use Presence::{Always, NotDefault, Sent};
use Shape::{Base64, Boolean, Double, Enum, Fixed32, Fixed64, Hex, Int64, Many, One, Text, Uint32};

static ANY_VALUE: Message = Message {
    fields: &[
        Field(5, "arrayValue", One(&ARRAY), Sent),
        Field(2, "boolValue", Boolean, Sent),
        Field(7, "bytesValue", Base64, Sent),
        Field(4, "doubleValue", Double, Sent),
        Field(3, "intValue", Int64, Sent),
        Field(6, "kvlistValue", One(&KEY_VALUES), Sent),
        Field(1, "stringValue", Text, Sent),
    ],
    is_choice: true,
};
static ARRAY: Message = Message { fields: &[Field(1, "values", Many(&ANY_VALUE), Sent)], is_choice: false };
static KEY_VALUES: Message = Message { fields: &[Field(1, "values", Many(&KEY_VALUE), Sent)], is_choice: false };
static KEY_VALUE: Message = Message {
    fields: &[Field(1, "key", Text, NotDefault), Field(2, "value", One(&ANY_VALUE), Sent)],
    is_choice: false,
};
static RESOURCE: Message = Message {
    fields: &[Field(1, "attributes", Many(&KEY_VALUE), Sent), Field(2, "droppedAttributesCount", Uint32, NotDefault)],
    is_choice: false,
};
static SCOPE: Message = Message {
    fields: &[
        Field(3, "attributes", Many(&KEY_VALUE), Sent),
        Field(4, "droppedAttributesCount", Uint32, NotDefault),
        Field(1, "name", Text, NotDefault),
        Field(2, "version", Text, NotDefault),
    ],
    is_choice: false,
};
static EVENT: Message = Message {
    fields: &[
        Field(3, "attributes", Many(&KEY_VALUE), Sent),
        Field(4, "droppedAttributesCount", Uint32, NotDefault),
        Field(2, "name", Text, NotDefault),
        Field(1, "timeUnixNano", Fixed64, NotDefault),
    ],
    is_choice: false,
};
static LINK: Message = Message {
    fields: &[
        Field(4, "attributes", Many(&KEY_VALUE), Sent),
        Field(5, "droppedAttributesCount", Uint32, NotDefault),
        Field(6, "flags", Fixed32, NotDefault),
        Field(2, "spanId", Hex, Always),
        Field(1, "traceId", Hex, Always),
        Field(3, "traceState", Text, NotDefault),
    ],
    is_choice: false,
};
static STATUS: Message =
    Message { fields: &[Field(3, "code", Enum, NotDefault), Field(2, "message", Text, NotDefault)], is_choice: false };
static SPAN: Message = Message {
    fields: &[
        Field(9, "attributes", Many(&KEY_VALUE), Sent),
        Field(10, "droppedAttributesCount", Uint32, NotDefault),
        Field(12, "droppedEventsCount", Uint32, NotDefault),
        Field(14, "droppedLinksCount", Uint32, NotDefault),
        Field(8, "endTimeUnixNano", Fixed64, NotDefault),
        Field(11, "events", Many(&EVENT), Sent),
        Field(16, "flags", Fixed32, NotDefault),
        Field(6, "kind", Enum, NotDefault),
        Field(13, "links", Many(&LINK), Sent),
        Field(5, "name", Text, NotDefault),
        Field(4, "parentSpanId", Hex, NotDefault),
        Field(2, "spanId", Hex, Always),
        Field(7, "startTimeUnixNano", Fixed64, NotDefault),
        Field(15, "status", One(&STATUS), Sent),
        Field(1, "traceId", Hex, Always),
        Field(3, "traceState", Text, NotDefault),
    ],
    is_choice: false,
};
/// The place of `spanId` and `traceId` in SPAN.
const SPAN_ID: usize = 11;
const TRACE_ID: usize = 14;
const FIELDS_MAX: usize = 16;
/// Messages that are nested deeper are left to Python.
const DEPTH_MAX: usize = 16;
/// Between these, Rust and ECMAScript write a float in the same layout: digits with a point in them.
const SAME_LAYOUT: std::ops::Range<f64> = 1e-4..1e15;
/// Integral numbers from the first to below the second are integers (avro/canonical.py).
const INTEGERS: std::ops::Range<f64> = -9_223_372_036_854_775_808.0..18_446_744_073_709_551_616.0;

/// A span: its ids in hex, its text, and its message.
pub struct Span<'a> {
    pub trace_id: String,
    pub id: String,
    pub text: String,
    pub message: &'a [u8],
}

/// The spans of one scope, with the texts of their resource and their scope, and the resource's message.
pub struct Scoped<'a> {
    pub resource: String,
    pub resource_message: &'a [u8],
    pub scope: String,
    pub spans: Vec<Span<'a>>,
}

/// Returns the spans of a request, and how many others have no valid ids; None if Python must decode it.
pub fn decode(body: &[u8]) -> Option<(Vec<Scoped<'_>>, usize)> {
    let (mut found, mut rejected) = (Vec::new(), 0);
    for of_resource in messages(body, 1, &[])? {
        let resource = one(of_resource, &RESOURCE)?;
        let resource_message = messages(of_resource, 1, &[2, 3])?.first().copied().unwrap_or_default();
        for of_scope in messages(of_resource, 2, &[1, 3])? {
            let (resource, scope) = (resource.clone(), one(of_scope, &SCOPE)?);
            let mut scoped = Scoped { resource, resource_message, scope, spans: Vec::new() };
            for message in messages(of_scope, 2, &[1, 3])? {
                let sent = sent(message, &SPAN)?;
                let id = |place: usize| if let Some(Value::Bytes(id)) = sent.once[place] { id } else { &[] };
                let (trace_id, span_id) = (id(TRACE_ID), id(SPAN_ID));
                let mut text = String::with_capacity(3 * message.len());
                write(&mut text, &sent, &SPAN, 0)?;
                if is_id(trace_id, 16) && is_id(span_id, 8) {
                    scoped.spans.push(Span { trace_id: hex(trace_id), id: hex(span_id), text, message });
                } else {
                    rejected += 1;
                }
            }
            found.push(scoped);
        }
    }
    Some((found, rejected))
}

/// The text of the message in field 1, which may be sent once, next to a schema's address in field 3.
fn one(body: &[u8], shape: &Message) -> Option<String> {
    let (mut found, mut at) = (None, 0);
    while at < body.len() {
        let (number, value) = next(body, &mut at)?;
        match (number, value) {
            (1, Value::Bytes(message)) if found.is_none() => found = Some(message),
            (3, Value::Bytes(address)) => drop(std::str::from_utf8(address).ok()?),
            (2, Value::Bytes(_)) => {}
            _ => return None,
        }
    }
    let mut text = String::new();
    write(&mut text, &sent(found.unwrap_or(&[]), shape)?, shape, 0)?;
    Some(text)
}

/// The messages of one field. others: the fields that may be there too.
fn messages<'a>(body: &'a [u8], wanted: u64, others: &[u64]) -> Option<Vec<&'a [u8]>> {
    let (mut found, mut at) = (Vec::new(), 0);
    while at < body.len() {
        let (number, value) = next(body, &mut at)?;
        match value {
            Value::Bytes(message) if number == wanted => found.push(message),
            Value::Bytes(_) if others.contains(&number) => {}
            _ => return None,
        }
    }
    Some(found)
}

#[derive(Clone, Copy)]
pub enum Value<'a> {
    Varint(u64),
    Fixed64(u64),
    Fixed32(u32),
    Bytes(&'a [u8]),
}

/// What was sent of a message: values by the place of their field, and those of repeated fields in order.
struct SentFields<'a> {
    once: [Option<Value<'a>>; FIELDS_MAX],
    many: Vec<(usize, &'a [u8])>,
}

fn sent<'a>(body: &'a [u8], shape: &Message) -> Option<SentFields<'a>> {
    let mut found = SentFields { once: [None; FIELDS_MAX], many: Vec::new() };
    let (mut at, mut count) = (0, 0);
    while at < body.len() {
        let (number, value) = next(body, &mut at)?;
        let place = shape.fields.iter().position(|field| field.0 == number)?;
        if let Many(_) = shape.fields[place].2 {
            let Value::Bytes(message) = value else { return None };
            found.many.push((place, message));
            continue;
        }
        count += 1;
        if found.once[place].is_some() || (shape.is_choice && count > 1) {
            return None;
        }
        found.once[place] = Some(value);
    }
    Some(found)
}

fn write(out: &mut String, sent: &SentFields, shape: &Message, depth: usize) -> Option<()> {
    if depth > DEPTH_MAX {
        return None;
    }
    out.push('{');
    let mut is_first = true;
    for (place, Field(_, name, shape, presence)) in shape.fields.iter().enumerate() {
        let before = out.len();
        if !is_first {
            out.push(',');
        }
        out.push('"');
        out.push_str(name);
        out.push_str("\":");
        let is_written = if let Many(inner) = shape {
            write_many(out, sent, place, inner, depth)?
        } else {
            write_value(out, sent.once[place], shape, presence, depth)?
        };
        if is_written {
            is_first = false;
        } else {
            out.truncate(before);
        }
    }
    out.push('}');
    Some(())
}

fn write_many(out: &mut String, all: &SentFields, place: usize, shape: &Message, depth: usize) -> Option<bool> {
    let mut is_first = true;
    for (_, message) in all.many.iter().filter(|(of, _)| *of == place) {
        out.push(if is_first { '[' } else { ',' });
        is_first = false;
        write(out, &sent(message, shape)?, shape, depth + 1)?;
    }
    if !is_first {
        out.push(']');
    }
    Some(!is_first)
}

/// Writes a value. Returns whether it is there to be written.
fn write_value(
    out: &mut String,
    value: Option<Value>,
    shape: &Shape,
    presence: &Presence,
    depth: usize,
) -> Option<bool> {
    let Some(value) = value else {
        if *presence == Always {
            out.push_str("\"\"");
        }
        return Some(*presence == Always);
    };
    let is_default = match value {
        Value::Varint(number) | Value::Fixed64(number) => number == 0,
        Value::Fixed32(number) => number == 0,
        Value::Bytes(bytes) => bytes.is_empty(),
    };
    if is_default && *presence == NotDefault {
        return Some(false);
    }
    match (shape, value) {
        (Text, Value::Bytes(text)) => write_text(out, std::str::from_utf8(text).ok()?),
        (Hex, Value::Bytes(bytes)) => quoted(out, &hex(bytes)),
        (Base64, Value::Bytes(bytes)) => quoted(out, &base64(bytes)),
        (Fixed64, Value::Fixed64(number)) => write!(out, "\"{number}\"").ok()?,
        (Int64, Value::Varint(number)) => write!(out, "\"{}\"", number.cast_signed()).ok()?,
        (Fixed32, Value::Fixed32(number)) => write!(out, "{number}").ok()?,
        (Uint32, Value::Varint(number)) => write!(out, "{}", u32::try_from(number).ok()?).ok()?,
        (Enum, Value::Varint(number)) => write!(out, "{}", i32::try_from(number.cast_signed()).ok()?).ok()?,
        (Boolean, Value::Varint(number)) => out.push_str(if number == 0 { "false" } else { "true" }),
        (Double, Value::Fixed64(bits)) => write_double(out, f64::from_bits(bits))?,
        (One(inner), Value::Bytes(message)) => write(out, &sent(message, inner)?, inner, depth + 1)?,
        _ => return None,
    }
    Some(true)
}

pub fn write_double(out: &mut String, number: f64) -> Option<()> {
    if number.is_nan() {
        quoted(out, "NaN");
    } else if number.is_infinite() {
        quoted(out, if number > 0.0 { "Infinity" } else { "-Infinity" });
    } else if number.fract() == 0.0 && INTEGERS.contains(&number) {
        write!(out, "{}", number as i128).ok()?;
    } else if SAME_LAYOUT.contains(&number.abs()) {
        write!(out, "{number}").ok()?;
    } else {
        return None;
    }
    Some(())
}

fn quoted(out: &mut String, plain: &str) {
    out.push('"');
    out.push_str(plain);
    out.push('"');
}

pub fn write_text(out: &mut String, text: &str) {
    out.push('"');
    let mut from = 0;
    for (at, byte) in text.bytes().enumerate() {
        if byte >= 0x20 && byte != b'"' && byte != b'\\' {
            continue;
        }
        out.push_str(&text[from..at]);
        from = at + 1;
        match byte {
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            0x08 => out.push_str("\\b"),
            b'\t' => out.push_str("\\t"),
            b'\n' => out.push_str("\\n"),
            0x0c => out.push_str("\\f"),
            b'\r' => out.push_str("\\r"),
            _ => drop(write!(out, "\\u{byte:04x}")),
        }
    }
    out.push_str(&text[from..]);
    out.push('"');
}

fn is_id(bytes: &[u8], size: usize) -> bool {
    bytes.len() == size && bytes.iter().any(|byte| *byte != 0)
}

pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]).map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let bits = (0..3).fold(0u32, |bits, place| bits << 8 | u32::from(*group.get(place).unwrap_or(&0)));
        for place in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * place) & 63) as usize];
            text.push(if place <= group.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

/// The next field's number and value; None if it is not whole, or of a kind that these messages do not have.
pub fn next<'a>(body: &'a [u8], at: &mut usize) -> Option<(u64, Value<'a>)> {
    let tag = varint(body, at)?;
    let value = match tag & 7 {
        0 => Value::Varint(varint(body, at)?),
        1 => Value::Fixed64(u64::from_le_bytes(taken(body, at, 8)?.try_into().ok()?)),
        2 => {
            let size = usize::try_from(varint(body, at)?).ok()?;
            Value::Bytes(taken(body, at, size)?)
        }
        5 => Value::Fixed32(u32::from_le_bytes(taken(body, at, 4)?.try_into().ok()?)),
        _ => return None,
    };
    Some((tag >> 3, value))
}

fn taken<'a>(body: &'a [u8], at: &mut usize, size: usize) -> Option<&'a [u8]> {
    let taken = body.get(*at..at.checked_add(size)?)?;
    *at += size;
    Some(taken)
}

fn varint(body: &[u8], at: &mut usize) -> Option<u64> {
    let mut number = 0;
    for shift in 0..9 {
        let byte = *body.get(*at)?;
        *at += 1;
        number |= u64::from(byte & 127) << (7 * shift);
        if byte < 128 {
            return Some(number);
        }
    }
    let byte = *body.get(*at)?;
    *at += 1;
    (byte < 2).then(|| number | u64::from(byte) << 63)
}
