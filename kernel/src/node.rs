//! A node of a type's schema: the allowed values, and how they are read, checked and written as Avro.

use crate::avro::{write_bytes, write_long, write_text, Reader};
use crate::json;
use crate::value::{is_integer, Value};

/// A kind of value, or a union of such kinds.
#[derive(Debug)]
pub enum Node {
    One(Kind),
    Union(Vec<Kind>),
}

#[derive(Debug)]
pub enum Kind {
    Null,
    Text,
    /// Text in a form that Python checks when a record is received: UUIDs.
    CheckedText,
    /// Canonical JSON.
    Json,
    Bytes,
    Fixed {
        size: usize,
    },
    /// Integers in [low, end).
    Integer {
        low: i128,
        end: i128,
    },
    Boolean,
    Enum {
        symbols: Vec<String>,
    },
    Float,
    Double,
    /// At most 18 digits, `scale` of them after the decimal point.
    Decimal {
        precision: u32,
        scale: u32,
    },
    Array(Box<Node>),
    Map(Box<Node>),
    Record(Vec<Member>),
    Blob,
    Sealed,
}

/// A record's field. `name`: its first name. If null is allowed, a null is left out of the value.
#[derive(Debug)]
pub struct Member {
    pub name: String,
    pub node: Node,
}

impl Node {
    /// Reads the next value. is_checked: whether Python has checked the record.
    pub fn read<'a>(&'a self, reader: &mut Reader<'a>, is_checked: bool) -> Option<Value<'a>> {
        match self {
            Node::One(kind) => kind.read(reader, is_checked),
            Node::Union(kinds) => kinds.get(reader.count()?)?.read(reader, is_checked),
        }
    }

    /// Returns whether a stored value is one that `read` returns and `write` can write.
    pub fn holds(&self, value: &Value) -> bool {
        self.kind_of(value).is_some_and(|(_, kind)| kind.holds(value))
    }

    /// Writes the Avro bytes of a value for which `holds` is true.
    pub fn write(&self, out: &mut Vec<u8>, value: &Value) -> Option<()> {
        let (branch, kind) = self.kind_of(value)?;
        if matches!(self, Node::Union(_)) {
            write_long(out, i64::try_from(branch).ok()?);
        }
        kind.write(out, value)
    }

    pub fn allows_null(&self) -> bool {
        match self {
            Node::One(kind) => matches!(kind, Kind::Null),
            Node::Union(kinds) => kinds.iter().any(|kind| matches!(kind, Kind::Null)),
        }
    }

    /// Returns the kind of a value, and its branch. Blob and Sealed are recognised by their members, which no other
    /// record has.
    fn kind_of(&self, value: &Value) -> Option<(usize, &Kind)> {
        let kinds = match self {
            Node::One(kind) => return Some((0, kind)),
            Node::Union(kinds) => kinds,
        };
        let mut each = kinds.iter().enumerate();
        let is_own = |kind: &Kind| match kind {
            Kind::Null => matches!(value, Value::Null),
            Kind::Blob => is_blob(value),
            Kind::Sealed => is_sealed(value),
            // A sum is a long if it fits, else a double.
            Kind::Integer { .. } => kind.holds(value),
            _ => false,
        };
        let is_plain = |kind: &Kind| !matches!(kind, Kind::Null | Kind::Blob | Kind::Sealed) && kind.holds(value);
        each.find(|(_, kind)| is_own(kind)).or_else(|| kinds.iter().enumerate().find(|(_, kind)| is_plain(kind)))
    }
}

impl Kind {
    pub fn read<'a>(&'a self, reader: &mut Reader<'a>, is_checked: bool) -> Option<Value<'a>> {
        match self {
            Kind::Null => Some(Value::Null),
            Kind::CheckedText if !is_checked => None,
            Kind::Json if !is_checked => reader.text().filter(|text| json::is_canonical(text)).map(Value::Text),
            Kind::Text | Kind::CheckedText | Kind::Json => reader.text().map(Value::Text),
            Kind::Bytes => reader.bytes().map(Value::Bytes),
            Kind::Fixed { size } => reader.take(*size).map(Value::Bytes),
            Kind::Integer { low, end } => {
                let number = i128::from(reader.long()?);
                (low..end).contains(&&number).then_some(Value::Integer(number))
            }
            Kind::Boolean => match reader.byte()? {
                0 => Some(Value::Boolean(false)),
                1 => Some(Value::Boolean(true)),
                _ => None,
            },
            Kind::Enum { symbols } => symbols.get(reader.count()?).map(|symbol| Value::Text(symbol)),
            Kind::Float => Value::number(f32::from_le_bytes(reader.take(4)?.try_into().ok()?).into()),
            Kind::Double => Value::number(f64::from_le_bytes(reader.take(8)?.try_into().ok()?)),
            Kind::Decimal { precision, scale } => decimal(reader.bytes()?, *precision, *scale),
            Kind::Array(item) => {
                let mut items = Vec::new();
                reader.blocks(|reader| {
                    items.push(item.read(reader, is_checked)?);
                    Some(())
                })?;
                Some(Value::List(items))
            }
            Kind::Map(value) => {
                let mut members: Vec<(&'a str, Value<'a>)> = Vec::new();
                reader.blocks(|reader| {
                    members.push((reader.text()?, value.read(reader, is_checked)?));
                    Some(())
                })?;
                are_distinct(members.iter().map(|(key, _)| *key)).then_some(Value::Map(members))
            }
            Kind::Record(members) => {
                let mut found = Vec::with_capacity(members.len());
                for member in members {
                    let value = member.node.read(reader, is_checked)?;
                    if !matches!(value, Value::Null) {
                        found.push((&*member.name, value));
                    }
                }
                Some(Value::Map(found))
            }
            Kind::Blob => {
                let hash = Value::Bytes(reader.take(32)?);
                let size = Value::Integer(reader.long().filter(|size| *size >= 0)?.into());
                Some(Value::Map(vec![("hash", hash), ("size", size), ("media_type", Value::Text(reader.text()?))]))
            }
            Kind::Sealed => {
                let key_id = Value::Text(reader.text()?);
                Some(Value::Map(vec![("key_id", key_id), ("ciphertext", Value::Bytes(reader.bytes()?))]))
            }
        }
    }

    fn holds(&self, value: &Value) -> bool {
        match (self, value) {
            (Kind::Text | Kind::CheckedText | Kind::Json, Value::Text(_))
            | (Kind::Boolean, Value::Boolean(_))
            | (Kind::Null, Value::Null)
            | (Kind::Bytes, Value::Bytes(_)) => true,
            (Kind::Fixed { size }, Value::Bytes(bytes)) => bytes.len() == *size,
            (Kind::Enum { symbols }, Value::Text(text)) => symbols.iter().any(|symbol| symbol == text),
            (Kind::Integer { .. }, Value::Integer(number)) => i64::try_from(*number).is_ok(),
            // An integer is the canonical form of the double, or float, that equals it.
            (Kind::Float, Value::Integer(number)) => (*number as f32) as i128 == *number,
            (Kind::Double, Value::Integer(number)) => (*number as f64) as i128 == *number,
            (Kind::Float, Value::Float(number)) => {
                number.is_finite() && !is_integer(*number) && f64::from(*number as f32) == *number
            }
            (Kind::Double, Value::Float(number)) => number.is_finite() && !is_integer(*number),
            (Kind::Decimal { scale, .. }, value) => unscaled(value, *scale).is_some(),
            (Kind::Array(item), Value::List(items)) => items.iter().all(|each| item.holds(each)),
            (Kind::Map(node), Value::Map(members)) => members.iter().all(|(_, each)| node.holds(each)),
            (Kind::Record(members), Value::Map(given)) => {
                let held = |member: &Member| match value.member(&member.name) {
                    Some(Value::Null) => None,
                    Some(each) => member.node.holds(each).then_some(1),
                    None => member.node.allows_null().then_some(0),
                };
                members.iter().map(held).sum::<Option<usize>>() == Some(given.len())
            }
            (Kind::Blob, value) => is_blob(value),
            (Kind::Sealed, value) => is_sealed(value),
            _ => false,
        }
    }

    fn write(&self, out: &mut Vec<u8>, value: &Value) -> Option<()> {
        match (self, value) {
            (Kind::Null, Value::Null) => {}
            (Kind::Text | Kind::CheckedText | Kind::Json, Value::Text(text)) => write_text(out, text),
            (Kind::Bytes, Value::Bytes(bytes)) => write_bytes(out, bytes),
            (Kind::Fixed { .. }, Value::Bytes(bytes)) => out.extend_from_slice(bytes),
            (Kind::Integer { .. }, Value::Integer(number)) => write_long(out, i64::try_from(*number).ok()?),
            (Kind::Boolean, Value::Boolean(truth)) => out.push((*truth).into()),
            (Kind::Enum { symbols }, Value::Text(text)) => {
                let place = symbols.iter().position(|symbol| symbol == text)?;
                write_long(out, i64::try_from(place).ok()?);
            }
            (Kind::Float, _) => out.extend_from_slice(&(value.as_double()? as f32).to_le_bytes()),
            (Kind::Double, _) => out.extend_from_slice(&value.as_double()?.to_le_bytes()),
            (Kind::Decimal { scale, .. }, _) => write_bytes(out, &signed_bytes(unscaled(value, *scale)?)),
            (Kind::Array(item), Value::List(items)) => {
                write_head(out, items.len())?;
                for each in items {
                    item.write(out, each)?;
                }
                write_end(out, items.len());
            }
            (Kind::Map(node), Value::Map(members)) => {
                write_head(out, members.len())?;
                for (key, each) in members {
                    write_text(out, key);
                    node.write(out, each)?;
                }
                write_end(out, members.len());
            }
            (Kind::Record(members), Value::Map(_)) => {
                for member in members {
                    member.node.write(out, value.member(&member.name).unwrap_or(&Value::Null))?;
                }
            }
            (Kind::Blob, Value::Map(_)) => match (value.member("hash")?, value.member("size")?, value.member("media_type")?) {
                (Value::Bytes(hash), Value::Integer(size), Value::Text(media_type)) => {
                    out.extend_from_slice(hash);
                    write_long(out, i64::try_from(*size).ok()?);
                    write_text(out, media_type);
                }
                _ => return None,
            },
            (Kind::Sealed, Value::Map(_)) => match (value.member("key_id")?, value.member("ciphertext")?) {
                (Value::Text(key_id), Value::Bytes(ciphertext)) => {
                    write_text(out, key_id);
                    write_bytes(out, ciphertext);
                }
                _ => return None,
            },
            _ => return None,
        }
        Some(())
    }
}

/// Writes the start of an array or a map: the number of its items. Its end is a 0.
fn write_head(out: &mut Vec<u8>, count: usize) -> Option<()> {
    write_long(out, i64::try_from(count).ok()?);
    Some(())
}

fn write_end(out: &mut Vec<u8>, count: usize) {
    if count != 0 {
        out.push(0);
    }
}

pub fn are_distinct<'a>(keys: impl Iterator<Item = &'a str>) -> bool {
    let mut keys: Vec<&str> = keys.collect();
    keys.sort_unstable();
    keys.windows(2).all(|pair| pair[0] != pair[1])
}

fn is_blob(value: &Value) -> bool {
    let size = |size: &Value| matches!(size, Value::Integer(size) if (0..1 << 63).contains(size));
    value.members() == Some(3)
        && value.member("hash").is_some_and(|hash| matches!(hash, Value::Bytes(hash) if hash.len() == 32))
        && value.member("size").is_some_and(size)
        && value.member("media_type").is_some_and(|text| matches!(text, Value::Text(_)))
}

fn is_sealed(value: &Value) -> bool {
    value.members() == Some(2)
        && value.member("key_id").is_some_and(|text| matches!(text, Value::Text(_)))
        && value.member("ciphertext").is_some_and(|bytes| matches!(bytes, Value::Bytes(_)))
}

/// Returns the canonical decimal of two's-complement bytes: with the smallest possible scale.
fn decimal<'a>(bytes: &[u8], precision: u32, scale: u32) -> Option<Value<'a>> {
    let mut unscaled = from_signed_bytes(bytes)?;
    let end = 10i128.checked_pow(precision)?;
    if unscaled <= -end || unscaled >= end {
        return None;
    }
    let mut places = i128::from(scale);
    while places > 0 && unscaled % 10 == 0 {
        (unscaled, places) = (unscaled / 10, places - 1);
    }
    Some(Value::Map(vec![("unscaled", Value::Integer(unscaled)), ("scale", Value::Integer(places))]))
}

/// Returns a canonical decimal as an integer at its schema's scale; None if the value is not a decimal.
fn unscaled(value: &Value, scale: u32) -> Option<i128> {
    match (value.members()?, value.member("unscaled")?, value.member("scale")?) {
        (2, Value::Integer(unscaled), Value::Integer(places)) => {
            let more = u32::try_from(i128::from(scale).checked_sub(*places)?).ok()?;
            (*places >= 0).then_some(())?;
            i64::try_from(*unscaled).ok().map(i128::from)?.checked_mul(10i128.checked_pow(more)?)
        }
        _ => None,
    }
}

/// Reads a number in big-endian two's complement; None if it has more than 128 bits.
pub fn from_signed_bytes(bytes: &[u8]) -> Option<i128> {
    let sign = if bytes.first().is_some_and(|byte| *byte >= 0x80) { 0xff } else { 0 };
    let mut padded = [sign; 16];
    let start = padded.len().checked_sub(bytes.len())?;
    padded[start..].copy_from_slice(bytes);
    Some(i128::from_be_bytes(padded))
}

/// Returns the fewest bytes that hold the number and its sign, by Python's `bit_length() // 8 + 1`.
pub fn signed_bytes(number: i128) -> Vec<u8> {
    let bits = 128 - number.unsigned_abs().leading_zeros() as usize;
    let bytes = number.to_be_bytes();
    let size = bits / 8 + 1;
    match bytes.len().checked_sub(size) {
        Some(start) => bytes[start..].to_vec(),
        None => [&[if number < 0 { 0xff } else { 0 }], bytes.as_slice()].concat(),
    }
}
