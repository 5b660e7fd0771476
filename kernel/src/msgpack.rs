//! MessagePack, as msgspec writes stored states (reducers/entity.py, docs/FORMAT.md).

use crate::node::are_distinct;
use crate::value::Value;

/// The maximum depth of values: a schema has fewer levels.
const DEPTH_MAX: usize = 64;

/// Reads the parts of a stored state. `None` means that refold does not write this form, so Python decides.
pub struct Reader<'a> {
    data: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub fn new(data: &'a [u8]) -> Self {
        Reader { data, at: 0 }
    }

    pub fn is_at_end(&self) -> bool {
        self.at == self.data.len()
    }

    fn byte(&mut self) -> Option<u8> {
        let byte = *self.data.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(count)?;
        let found = self.data.get(self.at..end)?;
        self.at = end;
        Some(found)
    }

    /// Reads a big-endian number of up to 8 bytes.
    fn big_endian(&mut self, size: usize) -> Option<u64> {
        Some(self.take(size)?.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn size(&mut self, size: usize) -> Option<usize> {
        usize::try_from(self.big_endian(size)?).ok()
    }

    /// Reads any MessagePack integer.
    pub fn integer(&mut self) -> Option<i128> {
        let head = self.byte()?;
        self.integer_after(head)
    }

    fn integer_after(&mut self, head: u8) -> Option<i128> {
        Some(match head {
            0x00..=0x7f => head.into(),
            0xe0..=0xff => (head as i8).into(),
            0xcc..=0xcf => self.big_endian(1 << (head - 0xcc))?.into(),
            0xd0 => (self.big_endian(1)? as i8).into(),
            0xd1 => (self.big_endian(2)? as i16).into(),
            0xd2 => (self.big_endian(4)? as i32).into(),
            0xd3 => (self.big_endian(8)? as i64).into(),
            _ => return None,
        })
    }

    /// Reads a count: at least 0, below 2^63.
    pub fn count(&mut self) -> Option<i64> {
        i64::try_from(self.integer()?).ok().filter(|number| *number >= 0)
    }

    /// Whether the next item is bytes.
    pub fn has_bytes(&self) -> bool {
        matches!(self.data.get(self.at), Some(0xc4..=0xc6))
    }

    pub fn bytes(&mut self) -> Option<&'a [u8]> {
        let size = match self.byte()? {
            head @ 0xc4..=0xc6 => self.size(1 << (head - 0xc4))?,
            _ => return None,
        };
        self.take(size)
    }

    pub fn array(&mut self) -> Option<usize> {
        match self.byte()? {
            head @ 0x90..=0x9f => Some((head & 0x0f).into()),
            0xdc => self.size(2),
            0xdd => self.size(4),
            _ => None,
        }
    }

    pub fn map(&mut self) -> Option<usize> {
        match self.byte()? {
            head @ 0x80..=0x8f => Some((head & 0x0f).into()),
            0xde => self.size(2),
            0xdf => self.size(4),
            _ => None,
        }
    }

    pub fn text(&mut self) -> Option<&'a str> {
        let head = self.byte()?;
        self.text_after(head)
    }

    fn text_after(&mut self, head: u8) -> Option<&'a str> {
        let size = match head {
            0xa0..=0xbf => (head & 0x1f).into(),
            0xd9..=0xdb => self.size(1 << (head - 0xd9))?,
            _ => return None,
        };
        std::str::from_utf8(self.take(size)?).ok()
    }

    /// Consumes a nil, if the next item is one.
    pub fn is_nil(&mut self) -> bool {
        let is_nil = self.data.get(self.at) == Some(&0xc0);
        self.at += usize::from(is_nil);
        is_nil
    }

    pub fn boolean(&mut self) -> Option<bool> {
        match self.byte()? {
            0xc2 => Some(false),
            0xc3 => Some(true),
            _ => None,
        }
    }

    /// Reads a value of a cell; the caller checks that it fits the field.
    pub fn value(&mut self) -> Option<Value<'a>> {
        self.value_within(DEPTH_MAX)
    }

    fn value_within(&mut self, depth: usize) -> Option<Value<'a>> {
        if self.is_nil() {
            return Some(Value::Null);
        }
        let head = *self.data.get(self.at)?;
        let inner = depth.checked_sub(1);
        match head {
            0xc4..=0xc6 => return self.bytes().map(Value::Bytes),
            0x90..=0x9f | 0xdc | 0xdd => {
                let mut items = Vec::new();
                for _ in 0..self.array()? {
                    items.push(self.value_within(inner?)?);
                }
                return Some(Value::List(items));
            }
            0x80..=0x8f | 0xde | 0xdf => {
                let mut members = Vec::new();
                for _ in 0..self.map()? {
                    members.push((self.text()?, self.value_within(inner?)?));
                }
                return are_distinct(members.iter().map(|(key, _)| *key)).then_some(Value::Map(members));
            }
            _ => {}
        }
        Some(match self.byte()? {
            0xc2 => Value::Boolean(false),
            0xc3 => Value::Boolean(true),
            0xcb => Value::Float(f64::from_bits(self.big_endian(8)?)),
            head @ (0xa0..=0xbf | 0xd9..=0xdb) => Value::Text(self.text_after(head)?),
            head => Value::Integer(self.integer_after(head)?),
        })
    }
}

/// Writes an integer in [-2^63, 2^64).
pub fn integer(out: &mut Vec<u8>, number: i128) {
    if number >= 0 {
        let number = number as u64;
        if number < 0x80 {
            out.push(number as u8);
        } else if let Ok(number) = u8::try_from(number) {
            out.extend_from_slice(&[0xcc, number]);
        } else if let Ok(number) = u16::try_from(number) {
            out.push(0xcd);
            out.extend_from_slice(&number.to_be_bytes());
        } else if let Ok(number) = u32::try_from(number) {
            out.push(0xce);
            out.extend_from_slice(&number.to_be_bytes());
        } else {
            out.push(0xcf);
            out.extend_from_slice(&number.to_be_bytes());
        }
    } else if number >= -32 {
        out.push(number as u8);
    } else if let Ok(number) = i8::try_from(number) {
        out.extend_from_slice(&[0xd0, number as u8]);
    } else if let Ok(number) = i16::try_from(number) {
        out.push(0xd1);
        out.extend_from_slice(&number.to_be_bytes());
    } else if let Ok(number) = i32::try_from(number) {
        out.push(0xd2);
        out.extend_from_slice(&number.to_be_bytes());
    } else {
        out.push(0xd3);
        out.extend_from_slice(&(number as i64).to_be_bytes());
    }
}

/// Writes a length with one of the three headers for lengths of 1, 2 and 4 bytes; `head` is the first of them.
fn sized(out: &mut Vec<u8>, head: u8, size: usize) {
    if let Ok(size) = u8::try_from(size) {
        out.extend_from_slice(&[head, size]);
    } else if let Ok(size) = u16::try_from(size) {
        out.push(head + 1);
        out.extend_from_slice(&size.to_be_bytes());
    } else {
        out.push(head + 2);
        out.extend_from_slice(&(size as u32).to_be_bytes());
    }
}

pub fn bytes(out: &mut Vec<u8>, value: &[u8]) {
    sized(out, 0xc4, value.len());
    out.extend_from_slice(value);
}

pub fn text(out: &mut Vec<u8>, value: &str) {
    if value.len() < 32 {
        out.push(0xa0 | value.len() as u8);
    } else {
        sized(out, 0xd9, value.len());
    }
    out.extend_from_slice(value.as_bytes());
}

/// Writes the header of an array or a map: `short` plus the count up to 15, else `long` and two bytes.
fn members(out: &mut Vec<u8>, short: u8, long: u8, count: usize) {
    if count < 16 {
        out.push(short | count as u8);
    } else if let Ok(count) = u16::try_from(count) {
        out.push(long);
        out.extend_from_slice(&count.to_be_bytes());
    } else {
        out.push(long + 1);
        out.extend_from_slice(&(count as u32).to_be_bytes());
    }
}

pub fn array(out: &mut Vec<u8>, count: usize) {
    members(out, 0x90, 0xdc, count);
}

pub fn map(out: &mut Vec<u8>, count: usize) {
    members(out, 0x80, 0xde, count);
}

pub fn nil(out: &mut Vec<u8>) {
    out.push(0xc0);
}

pub fn boolean(out: &mut Vec<u8>, truth: bool) {
    out.push(if truth { 0xc3 } else { 0xc2 });
}

pub fn value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Null => nil(out),
        Value::Text(given) => text(out, given),
        Value::Bytes(given) => bytes(out, given),
        Value::Integer(number) => integer(out, *number),
        Value::Boolean(truth) => boolean(out, *truth),
        Value::Float(number) => {
            out.push(0xcb);
            out.extend_from_slice(&number.to_be_bytes());
        }
        Value::List(items) => {
            array(out, items.len());
            for item in items {
                self::value(out, item);
            }
        }
        Value::Map(members) => {
            map(out, members.len());
            for (key, member) in members {
                text(out, key);
                self::value(out, member);
            }
        }
    }
}
