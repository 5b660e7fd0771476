//! JSON texts inside attributes: read as Python's json module reads them, written as avro/canonical.py does.
//!
//! A text is left to Python if it is no JSON, repeats a key, or has a number that the two might read or write
//! differently.

use std::borrow::Cow;

use crate::node::are_distinct;
use crate::otlp::{write_double, write_text};

/// Values that are nested deeper are left to Python.
const DEPTH_MAX: usize = 16;
/// Longer texts are left to Python, which limits their number of values.
const TEXT_BYTES_MAX: usize = 1_000_000;
/// Longer integers are left to Python.
const DIGITS_MAX: usize = 18;

#[derive(Debug)]
pub enum Json<'a> {
    Null,
    Boolean(bool),
    Integer(i64),
    Float(f64),
    Text(Cow<'a, str>),
    List(Vec<Json<'a>>),
    Object(Vec<(Cow<'a, str>, Json<'a>)>),
}

impl<'a> Json<'a> {
    /// Returns the value in a text; None if Python must read it.
    pub fn read(text: &'a str) -> Option<Self> {
        if text.len() > TEXT_BYTES_MAX {
            return None;
        }
        let mut reader = Reader { text, at: 0 };
        reader.skip_space();
        let found = reader.value(0)?;
        reader.skip_space();
        (reader.at == text.len()).then_some(found)
    }

    /// Returns the value in a text if it is JSON, else the text: `parsed` of agents/importers/messages.py.
    pub fn read_or_text(text: &'a str) -> Option<Self> {
        if may_be_json(text) {
            Json::read(text)
        } else {
            Some(Json::Text(Cow::Borrowed(text)))
        }
    }

    /// Returns an object's member.
    pub fn member(&self, key: &str) -> Option<&Json<'a>> {
        match self {
            Json::Object(members) => members.iter().find(|(name, _)| name == key).map(|(_, value)| value),
            _ => None,
        }
    }

    /// Returns the text, if it is one.
    pub fn text(&self) -> Option<&str> {
        match self {
            Json::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the canonical text; None if Python must write it.
    pub fn canonical(&self) -> Option<String> {
        let mut out = String::new();
        self.write(&mut out)?;
        Some(out)
    }

    fn write(&self, out: &mut String) -> Option<()> {
        match self {
            Json::Null => out.push_str("null"),
            Json::Boolean(truth) => out.push_str(if *truth { "true" } else { "false" }),
            Json::Integer(number) => out.push_str(&number.to_string()),
            Json::Float(number) => write_double(out, *number).filter(|()| number.is_finite())?,
            Json::Text(text) => write_text(out, text),
            Json::List(items) => {
                out.push('[');
                for (place, item) in items.iter().enumerate() {
                    if place != 0 {
                        out.push(',');
                    }
                    item.write(out)?;
                }
                out.push(']');
            }
            Json::Object(members) => {
                let mut members: Vec<_> = members.iter().collect();
                members.sort_unstable_by(|one, other| one.0.cmp(&other.0));
                out.push('{');
                for (place, (key, value)) in members.into_iter().enumerate() {
                    if place != 0 {
                        out.push(',');
                    }
                    write_text(out, key);
                    out.push(':');
                    value.write(out)?;
                }
                out.push('}');
            }
        }
        Some(())
    }
}

/// Returns false if a text is certainly not JSON, by its first character.
pub fn may_be_json(text: &str) -> bool {
    let first = text.bytes().find(|byte| !is_space(*byte));
    first.is_some_and(|byte| b"{[\"-0123456789tfnNI".contains(&byte))
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Reader<'a> {
    fn next(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while self.next().is_some_and(is_space) {
            self.at += 1;
        }
    }

    fn skip(&mut self, wanted: &str) -> Option<()> {
        self.text[self.at..].starts_with(wanted).then(|| self.at += wanted.len())
    }

    fn value(&mut self, depth: usize) -> Option<Json<'a>> {
        if depth > DEPTH_MAX {
            return None;
        }
        match self.next()? {
            b'"' => self.string().map(Json::Text),
            b'{' => self.object(depth),
            b'[' => self.list(depth),
            b't' => self.skip("true").map(|()| Json::Boolean(true)),
            b'f' => self.skip("false").map(|()| Json::Boolean(false)),
            b'n' => self.skip("null").map(|()| Json::Null),
            _ => self.number(),
        }
    }

    fn list(&mut self, depth: usize) -> Option<Json<'a>> {
        self.at += 1;
        let mut items = Vec::new();
        self.skip_space();
        if self.next()? == b']' {
            self.at += 1;
            return Some(Json::List(items));
        }
        loop {
            self.skip_space();
            items.push(self.value(depth + 1)?);
            self.skip_space();
            self.at += 1;
            match self.text.as_bytes().get(self.at - 1)? {
                b',' => {}
                b']' => return Some(Json::List(items)),
                _ => return None,
            }
        }
    }

    fn object(&mut self, depth: usize) -> Option<Json<'a>> {
        self.at += 1;
        let mut members: Vec<(Cow<str>, Json)> = Vec::new();
        self.skip_space();
        if self.next()? == b'}' {
            self.at += 1;
            return Some(Json::Object(members));
        }
        loop {
            self.skip_space();
            if self.next()? != b'"' {
                return None;
            }
            let key = self.string()?;
            self.skip_space();
            self.skip(":")?;
            self.skip_space();
            members.push((key, self.value(depth + 1)?));
            self.skip_space();
            self.at += 1;
            match self.text.as_bytes().get(self.at - 1)? {
                b',' => {}
                b'}' => break,
                _ => return None,
            }
        }
        are_distinct(members.iter().map(|(key, _)| &**key)).then_some(Json::Object(members))
    }

    fn number(&mut self) -> Option<Json<'a>> {
        let start = self.at;
        while self.next().is_some_and(|byte| b"+-.0123456789eE".contains(&byte)) {
            self.at += 1;
        }
        let written = &self.text[start..self.at];
        let digits = written.strip_prefix('-').unwrap_or(written);
        let whole = digits.bytes().take_while(u8::is_ascii_digit).count();
        if whole == 0 || (whole > 1 && digits.starts_with('0')) {
            return None;
        }
        if whole == digits.len() {
            return if whole <= DIGITS_MAX { written.parse().ok().map(Json::Integer) } else { None };
        }
        let after = digits[whole..].strip_prefix('.')?; // an exponent without a point is left to Python
        let is_plain = !after.is_empty() && after.bytes().all(|byte| byte.is_ascii_digit());
        let number = if is_plain { written.parse().ok()? } else { return None };
        Some(Json::Float(number))
    }

    fn string(&mut self) -> Option<Cow<'a, str>> {
        self.at += 1;
        let start = self.at;
        loop {
            match self.next()? {
                b'"' => {
                    self.at += 1;
                    return Some(Cow::Borrowed(&self.text[start..self.at - 1]));
                }
                b'\\' => break,
                0..0x20 => return None,
                _ => self.at += 1,
            }
        }
        let mut own = String::from(&self.text[start..self.at]);
        loop {
            let from = self.at;
            while !matches!(self.next()?, b'"' | b'\\' | 0..0x20) {
                self.at += 1;
            }
            own.push_str(&self.text[from..self.at]);
            match self.next()? {
                b'"' => {
                    self.at += 1;
                    return Some(Cow::Owned(own));
                }
                b'\\' => own.push(self.escaped()?),
                _ => return None,
            }
        }
    }

    fn escaped(&mut self) -> Option<char> {
        self.at += 1;
        let byte = self.next()?;
        self.at += 1;
        Some(match byte {
            b'"' | b'\\' | b'/' => char::from(byte),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let unit = self.unit()?;
                if !(0xd800..0xe000).contains(&unit) {
                    return char::from_u32(unit);
                }
                self.skip("\\u")?;
                let low = self.unit()?;
                if unit >= 0xdc00 || !(0xdc00..0xe000).contains(&low) {
                    return None; // half of a pair
                }
                return char::from_u32(0x1_0000 + ((unit - 0xd800) << 10) + (low - 0xdc00));
            }
            _ => return None,
        })
    }

    fn unit(&mut self) -> Option<u32> {
        let digits = self.text.get(self.at..self.at + 4)?;
        self.at += 4;
        digits.bytes().all(|byte| byte.is_ascii_hexdigit()).then(|| u32::from_str_radix(digits, 16).ok())?
    }
}
