//! Reading an observation: the envelope as avro/derive.py lays it out, by the rules of avro/envelope.py.
//!
//! Only what folds directly is read: an assert of fields, with nothing cleared, nothing retracted and no link.

use sha2::{Digest, Sha256};

use crate::avro::Reader;
use crate::cbor;
use crate::layout::{Layout, FRAME_BYTES};
use crate::value::Value;

const ASSERT: u8 = 0;
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

/// An assert. `patch`: fields by their places in the layout, and their values.
pub struct Observation<'a> {
    pub entity: &'a str,
    pub observed_at: i64,
    pub priority: i32,
    pub source: Source<'a>,
    /// Ids, sorted, without repeats.
    pub causes: Vec<&'a [u8]>,
    pub patch: Vec<(usize, Value<'a>)>,
    pub subject: &'a str,
}

impl<'a> Observation<'a> {
    /// The observation in framed bytes; None where Python decides. is_checked: whether Python has checked the record.
    pub fn read(layout: &'a Layout, data: &'a [u8], is_checked: bool) -> Option<Self> {
        if data.get(..FRAME_BYTES)? != layout.frame {
            return None;
        }
        let mut reader = Reader::new(data, FRAME_BYTES);
        let entity = name(reader.text()?, false)?;
        if !entity.starts_with(&layout.prefix) || entity.len() == layout.prefix.len() || reader.byte()? != ASSERT {
            return None;
        }
        let observed_at = reader.long()?;
        let priority = i32::try_from(reader.long()?).ok()?;
        if !(TIME_MIN..=TIME_MAX).contains(&observed_at) {
            return None;
        }
        let source = Source {
            agent: name(reader.text()?, true)?,
            run: name(reader.text()?, true)?,
            step: name(reader.text()?, true)?,
            tool: name(reader.text()?, true)?,
            seq: reader.long()?,
        };
        let causes = reader.fixed_items(ID_BYTES)?;
        let patch = Self::read_patch(layout, &mut reader, is_checked)?;
        // Nothing cleared, nothing retracted, no link.
        if source.seq < 0 || patch.is_empty() || reader.take(3)? != [0, 0, 0] {
            return None;
        }
        let subject = name(reader.text()?, true)?;
        let is_set = causes.windows(2).all(|pair| pair[0] < pair[1]);
        (is_set && reader.is_at_end()).then_some(Observation {
            entity,
            observed_at,
            priority,
            source,
            causes,
            patch,
            subject,
        })
    }

    fn read_patch(
        layout: &'a Layout,
        reader: &mut Reader<'a>,
        is_checked: bool,
    ) -> Option<Vec<(usize, Value<'a>)>> {
        let mut patch = Vec::new();
        for (place, field) in layout.fields.iter().enumerate() {
            let branch = reader.byte()?;
            if branch == 0 {
                continue;
            }
            let known = field.branch.as_ref().filter(|known| known.byte == branch)?;
            patch.push((place, known.kind.read(reader, is_checked)?));
        }
        Some(patch)
    }

    /// Its id (avro/ids.py): the SHA-256 of its deterministic CBOR, with what has its default left out.
    pub fn id(&self, layout: &Layout) -> [u8; ID_BYTES] {
        let mut out = Vec::with_capacity(256 + self.entity.len());
        let source = &self.source;
        // In the order of their keys.
        let names = [("run", source.run), ("step", source.step), ("tool", source.tool), ("agent", source.agent)];
        let members = names.iter().filter(|(_, said)| !said.is_empty()).count() + usize::from(source.seq != 0);
        let given = [
            !self.causes.is_empty(),
            self.observed_at != 0,
            self.priority != 0,
            members != 0,
            !self.subject.is_empty(),
        ];
        out.extend_from_slice(DOMAIN);
        cbor::map_head(&mut out, 4 + given.iter().filter(|is_given| **is_given).count());
        if !self.causes.is_empty() {
            cbor::text(&mut out, "c");
            cbor::array_head(&mut out, self.causes.len());
            for cause in &self.causes {
                cbor::bytes(&mut out, cause);
            }
        }
        cbor::text(&mut out, "e");
        cbor::text(&mut out, self.entity);
        cbor::text(&mut out, "f");
        self.write_patch(layout, &mut out);
        cbor::text(&mut out, "k");
        cbor::text(&mut out, "assert");
        for (key, number) in [("o", self.observed_at), ("p", i64::from(self.priority))] {
            if number != 0 {
                cbor::text(&mut out, key);
                cbor::value(&mut out, &Value::Integer(number.into()));
            }
        }
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

    /// Its order key (reducers/order.py).
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

/// A short text without control characters.
fn name(given: &str, may_be_empty: bool) -> Option<&str> {
    let is_name = (may_be_empty || !given.is_empty())
        && given.len() <= NAME_BYTES_MAX
        && (given.bytes().all(|byte| (0x20..0x7f).contains(&byte)) || !given.contains(char::is_control));
    is_name.then_some(given)
}
