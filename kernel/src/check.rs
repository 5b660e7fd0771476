//! Checks what is stored of a log, for verify: records, changes and checkpoints are compared with what the kernel makes.
//!
//! It confirms only what is right. Everything else is left to Python, which finds the difference and names it.

use std::collections::HashMap;

use crate::avro::Reader;
use crate::fold::{self, Changed, Outcome, Record};
use crate::layout::{Definition, Layout, FRAME_BYTES};
use crate::observation::Observation;
use crate::place;
use crate::rows::Rows;
use crate::value::Value;

const ID_BYTES: usize = 32;

/// Adds the rows of the indexes for a record that is an observation with its own id, in its own partition.
///
/// None if it is not, or if Python must check more of it: what it retracts, or the contents that it names.
pub fn record(layouts: &[&Layout], partitions: u32, entity: &str, record: &Record, rows: &mut Rows) -> Option<()> {
    let frame = record.data.get(..FRAME_BYTES)?;
    let layout = layouts.iter().find(|layout| layout.frame == frame)?;
    let observation = Observation::read(layout, record.data, false)?;
    let is_right = observation.entity == entity
        && place::partition(entity, partitions)? == u32::from(record.partition)
        && record.id == observation.id(layout)
        && record.offset >= 0
        && record.recorded_at >= 0;
    if !is_right || !observation.retracts.is_empty() || observation.patch.iter().any(|(_, value)| has_blob(value)) {
        return None;
    }
    rows.index(entity, record, &observation.order_key(record.id));
    Some(())
}

fn has_blob(value: &Value) -> bool {
    match value {
        Value::List(items) => items.iter().any(has_blob),
        Value::Map(members) => {
            matches!(value.member("hash"), Some(Value::Bytes(_))) || members.iter().any(|(_, each)| has_blob(each))
        }
        _ => false,
    }
}

/// The beginning of a change.
pub struct ChangeHead<'a> {
    pub entity: &'a str,
    /// Of the definition that made it.
    pub fingerprint: &'a [u8],
    pub from_version: i64,
    pub to_version: i64,
    pub through: i64,
}

impl<'a> ChangeHead<'a> {
    /// Reads the beginning of a framed change; None if it has another form, or was made by a new definition.
    pub fn read(data: &'a [u8]) -> Option<Self> {
        let mut reader = Reader::new(data, FRAME_BYTES);
        let (entity, fingerprint) = (reader.text()?, reader.take(ID_BYTES)?);
        let (from_version, to_version) = (reader.long()?, reader.long()?);
        match reader.byte()? {
            0 => {}
            2 => drop(reader.take(ID_BYTES)?),
            _ => return None,
        }
        reader.take(ID_BYTES)?; // the hash after it
        let through = reader.long()?;
        let is_redefined = reader.byte()? != 0;
        (!is_redefined).then_some(ChangeHead { entity, fingerprint, from_version, to_version, through })
    }
}

/// Folds the records of a stored change onto the state before it. Returns the state after it if the change is what this
/// fold makes, byte for byte; else None. The records are distinct observations. `rows` gets what the fold writes.
pub fn change(
    layout: &Layout,
    definition: &Definition,
    entity: &str,
    packed: Option<&[u8]>,
    records: &[Record],
    stored: &[u8],
    rows: &mut Rows,
) -> Option<Vec<u8>> {
    let through = ChangeHead::read(stored)?.through;
    let all_new: HashMap<usize, bool> = (0..records.len()).map(|place| (place, false)).collect();
    match fold::fold(layout, definition, entity, packed, records, through, &all_new, rows)? {
        Outcome::Folded(Some(Changed { state, change, .. })) if rows.get(change) == stored => {
            Some(rows.get(state).to_vec())
        }
        _ => None,
    }
}
