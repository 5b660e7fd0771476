//! Decodes an observation: the envelope with the layout of avro/derive.py, by the rules of avro/envelope.py.

use sha2::{Digest, Sha256};

use crate::avro::Reader;
use crate::cbor;
use crate::layout::{Layout, FRAME_BYTES};
use crate::links::{hash_validity, Validity};
use crate::value::Value;

const KINDS: [(Kind, &str); 3] = [(Kind::Assert, "assert"), (Kind::Link, "link"), (Kind::Unlink, "unlink")];
const NAME_BYTES_MAX: usize = 1024;
const ID_BYTES: usize = 32;
/// Microseconds since 1970 in the years 1 to 9999 (avro/times.py).
const TIME_MIN: i64 = -62_135_596_800_000_000;
const TIME_MAX: i64 = 253_402_300_799_999_999;
const SIGN: i64 = i64::MIN;
const DOMAIN: &[u8] = b"refold/1\0";

pub struct Source<'a> {
    pub agent: &'a str,
    pub run: &'a str,
    pub step: &'a str,
    pub tool: &'a str,
    pub seq: i64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Assert,
    Link,
    Unlink,
}

pub struct Link<'a> {
    pub relation: &'a str,
    pub target: &'a str,
    pub validity: Validity,
}

/// `patch`: fields, by index in the layout, and their values.
pub struct Observation<'a> {
    pub entity: &'a str,
    pub kind: Kind,
    pub observed_at: i64,
    pub priority: i32,
    pub source: Source<'a>,
    /// Ids, sorted, without repeats.
    pub causes: Vec<&'a [u8]>,
    pub patch: Vec<(usize, Value<'a>)>,
    /// Indexes of fields, in the order of the fields' names.
    pub cleared: Vec<usize>,
    /// Ids, sorted, without repeats.
    pub retracts: Vec<&'a [u8]>,
    pub link: Option<Link<'a>>,
    pub subject: &'a str,
}

impl<'a> Observation<'a> {
    /// Decodes framed bytes; None if Python must decide. is_checked: whether Python has checked the record.
    pub fn read(layout: &'a Layout, data: &'a [u8], is_checked: bool) -> Option<Self> {
        if data.get(..FRAME_BYTES)? != layout.frame {
            return None;
        }
        let mut reader = Reader::new(data, FRAME_BYTES);
        let entity = name(reader.text()?, false)?;
        if !entity.starts_with(&layout.prefix) || entity.len() == layout.prefix.len() {
            return None;
        }
        let (kind, _) = *KINDS.get(reader.count()?)?;
        let observed_at = time(reader.long()?)?;
        let priority = i32::try_from(reader.long()?).ok()?;
        let source = Source {
            agent: name(reader.text()?, true)?,
            run: name(reader.text()?, true)?,
            step: name(reader.text()?, true)?,
            tool: name(reader.text()?, true)?,
            seq: reader.long().filter(|seq| *seq >= 0)?,
        };
        let causes = ids(&mut reader)?;
        let patch = Self::read_patch(layout, &mut reader, is_checked)?;
        let cleared = Self::read_cleared(layout, &mut reader)?;
        let retracts = ids(&mut reader)?;
        let link = Link::read(&mut reader)?;
        let subject = name(reader.text()?, true)?;
        let says_fields = !(patch.is_empty() && cleared.is_empty() && retracts.is_empty());
        if says_fields != (kind == Kind::Assert) || link.is_some() == says_fields || !reader.is_at_end() {
            return None;
        }
        Some(Observation { entity, kind, observed_at, priority, source, causes, patch, cleared, retracts, link, subject })
    }

    /// Returns whether it only asserts fields.
    pub fn is_plain(&self) -> bool {
        self.link.is_none() && self.cleared.is_empty() && self.retracts.is_empty()
    }

    fn read_cleared(layout: &Layout, reader: &mut Reader<'a>) -> Option<Vec<usize>> {
        let (mut cleared, mut last) = (Vec::new(), None);
        reader.blocks(|reader| {
            let name = reader.text()?;
            let is_next = last.is_none_or(|last| last < name);
            last = Some(name);
            cleared.push(*layout.places.get(name).filter(|_| is_next)?);
            Some(())
        })?;
        Some(cleared)
    }

    fn read_patch(
        layout: &'a Layout,
        reader: &mut Reader<'a>,
        is_checked: bool,
    ) -> Option<Vec<(usize, Value<'a>)>> {
        let mut patch = Vec::new();
        for (place, field) in layout.fields.iter().enumerate() {
            match field.patch.read(reader, is_checked)? {
                Value::Null => {}
                value => patch.push((place, value)),
            }
        }
        Some(patch)
    }

    /// Returns its id (avro/ids.py): the SHA-256 of its deterministic CBOR, without members that have their default.
    pub fn id(&self, layout: &Layout) -> [u8; ID_BYTES] {
        let mut out = Vec::with_capacity(256 + self.entity.len());
        let source = &self.source;
        // In the order of their keys.
        let names = [("run", source.run), ("step", source.step), ("tool", source.tool), ("agent", source.agent)];
        let members = names.iter().filter(|(_, said)| !said.is_empty()).count() + usize::from(source.seq != 0);
        let given = [
            !self.causes.is_empty(),
            !self.patch.is_empty(),
            self.link.is_some(),
            self.observed_at != 0,
            self.priority != 0,
            !self.retracts.is_empty(),
            members != 0,
            !self.subject.is_empty(),
            !self.cleared.is_empty(),
        ];
        out.extend_from_slice(DOMAIN);
        cbor::map_head(&mut out, 3 + given.iter().filter(|is_given| **is_given).count());
        write_ids(&mut out, "c", &self.causes);
        cbor::text(&mut out, "e");
        cbor::text(&mut out, self.entity);
        if !self.patch.is_empty() {
            cbor::text(&mut out, "f");
            self.write_patch(layout, &mut out);
        }
        cbor::text(&mut out, "k");
        cbor::text(&mut out, KINDS.iter().find(|(kind, _)| *kind == self.kind).map_or("", |(_, name)| name));
        if let Some(Link { relation, target, validity }) = &self.link {
            cbor::text(&mut out, "l");
            let times = usize::from(validity.from.is_some()) + usize::from(validity.to.is_some());
            cbor::map_head(&mut out, 2 + times);
            for (key, said) in [("target", target), ("relation", relation)] {
                cbor::text(&mut out, key);
                cbor::text(&mut out, said);
            }
            hash_validity(*validity, &mut out);
        }
        for (key, number) in [("o", self.observed_at), ("p", i64::from(self.priority))] {
            if number != 0 {
                cbor::text(&mut out, key);
                cbor::integer(&mut out, number.into());
            }
        }
        write_ids(&mut out, "r", &self.retracts);
        if members != 0 {
            cbor::text(&mut out, "s");
            cbor::map_head(&mut out, members);
            for (place, (key, said)) in names.iter().enumerate() {
                if place == 1 && source.seq != 0 {
                    cbor::text(&mut out, "seq");
                    cbor::unsigned(&mut out, source.seq as u64);
                }
                if !said.is_empty() {
                    cbor::text(&mut out, key);
                    cbor::text(&mut out, said);
                }
            }
        }
        cbor::text(&mut out, "t");
        cbor::text(&mut out, &layout.prefix[..layout.prefix.len() - 1]);
        if !self.subject.is_empty() {
            cbor::text(&mut out, "u");
            cbor::text(&mut out, self.subject);
        }
        if !self.cleared.is_empty() {
            cbor::text(&mut out, "x");
            cbor::array_head(&mut out, self.cleared.len());
            for place in &self.cleared {
                out.extend_from_slice(&layout.fields[*place].key);
            }
        }
        Sha256::digest(&out).into()
    }

    fn write_patch(&self, layout: &Layout, out: &mut Vec<u8>) {
        cbor::map_head(out, self.patch.len());
        let mut patch: Vec<_> = self.patch.iter().map(|(place, value)| (&layout.fields[*place].key, value)).collect();
        patch.sort_unstable_by_key(|(key, _)| *key);
        for (key, value) in patch {
            out.extend_from_slice(key);
            cbor::value(out, value);
        }
    }

    /// Returns its order key (reducers/order.py).
    pub fn order_key(&self, id: &[u8]) -> Vec<u8> {
        let (agent, run) = (self.source.agent.as_bytes(), self.source.run.as_bytes());
        let mut key = Vec::with_capacity(18 + agent.len() + run.len() + id.len());
        key.extend_from_slice(&(self.observed_at ^ SIGN).to_be_bytes());
        key.extend_from_slice(agent);
        key.push(0);
        key.extend_from_slice(run);
        key.push(0);
        key.extend_from_slice(&self.source.seq.to_be_bytes());
        key.extend_from_slice(id);
        key
    }
}

impl<'a> Link<'a> {
    fn read(reader: &mut Reader<'a>) -> Option<Option<Self>> {
        match reader.byte()? {
            0 => return Some(None),
            2 => {}
            _ => return None,
        }
        let relation = name(reader.text()?, false)?;
        let target = name(reader.text()?, false).filter(|target| is_entity(target))?;
        let validity = Validity { from: time_or_null(reader)?, to: time_or_null(reader)? };
        Some(Some(Link { relation, target, validity }))
    }
}

fn time_or_null(reader: &mut Reader) -> Option<Option<i64>> {
    match reader.byte()? {
        0 => Some(None),
        2 => Some(Some(time(reader.long()?)?)),
        _ => None,
    }
}

fn time(micros: i64) -> Option<i64> {
    (TIME_MIN..=TIME_MAX).contains(&micros).then_some(micros)
}

/// Reads a sorted list of ids, without repeats.
fn ids<'a>(reader: &mut Reader<'a>) -> Option<Vec<&'a [u8]>> {
    let ids = reader.fixed_items(ID_BYTES)?;
    ids.windows(2).all(|pair| pair[0] < pair[1]).then_some(ids)
}

fn write_ids(out: &mut Vec<u8>, key: &str, ids: &[&[u8]]) {
    if !ids.is_empty() {
        cbor::text(out, key);
        cbor::array_head(out, ids.len());
        ids.iter().for_each(|id| cbor::bytes(out, id));
    }
}

/// Returns whether a name is an entity's: a type, a slash and an id.
fn is_entity(name: &str) -> bool {
    let Some((kind, id)) = name.split_once('/') else { return false };
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    !id.is_empty() && kind.bytes().all(is_word) && kind.bytes().next().is_some_and(|byte| !byte.is_ascii_digit())
}

/// Checks a name: a short text without control characters.
fn name(given: &str, may_be_empty: bool) -> Option<&str> {
    let is_name = (may_be_empty || !given.is_empty())
        && given.len() <= NAME_BYTES_MAX
        && (given.bytes().all(|byte| (0x20..0x7f).contains(&byte)) || !given.contains(char::is_control));
    is_name.then_some(given)
}
