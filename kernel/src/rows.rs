//! The rows that a batch puts into the indexes, its states and its changes, all in one buffer.
//!
//! Thousands of them are alive at a time. With a buffer for each, malloc and free took a large part of the fold's time.

use crate::fold::Record;
use crate::layout::Definition;
use crate::state::id_of;

const ID_PREFIX_BYTES: usize = 8;

/// Returns the parts of the key of an entity's row (streams/table/keys.py).
pub fn key_of<'a>(entity: &'a str, rest: &'a [u8]) -> [&'a [u8]; 3] {
    [entity.as_bytes(), &[0], rest]
}

/// A part of the buffer.
#[derive(Clone, Copy)]
pub struct Span {
    start: usize,
    end: usize,
}

/// A key and its value.
pub type Row = (Span, Span);

/// How much there was at some moment.
pub struct Mark {
    bytes: usize,
    timeline: usize,
    arrivals: usize,
    ids: usize,
    checkpoints: usize,
}

/// The rows by index; `ids` has only keys.
#[derive(Default)]
pub struct Rows {
    bytes: Vec<u8>,
    pub timeline: Vec<Row>,
    pub arrivals: Vec<Row>,
    pub ids: Vec<Span>,
    pub checkpoints: Vec<Row>,
}

impl Rows {
    /// Returns no rows, with room for those of some records. `buffer`: is used again.
    pub fn with_room(mut buffer: Vec<u8>, bytes: usize, records: usize) -> Self {
        buffer.clear();
        buffer.reserve(bytes);
        Rows {
            bytes: buffer,
            timeline: Vec::with_capacity(records),
            arrivals: Vec::with_capacity(records),
            ids: Vec::with_capacity(records),
            checkpoints: Vec::new(),
        }
    }

    /// Returns the buffer, to be used again.
    pub fn into_buffer(self) -> Vec<u8> {
        self.bytes
    }

    /// Returns the bytes of a part.
    pub fn get(&self, span: Span) -> &[u8] {
        &self.bytes[span.start..span.end]
    }

    /// Returns what `write` appends to the buffer.
    pub fn write(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Span {
        let start = self.bytes.len();
        write(&mut self.bytes);
        Span { start, end: self.bytes.len() }
    }

    fn joined(&mut self, parts: &[&[u8]]) -> Span {
        self.write(|out| parts.iter().for_each(|part| out.extend_from_slice(part)))
    }

    /// Adds the index entries of a record that is the first with its id (streams/table/keys.py).
    pub fn index(&mut self, entity: &str, record: &Record, q: &[u8]) {
        let (offset, recorded_at) = (record.offset.to_be_bytes(), record.recorded_at.to_be_bytes());
        let timeline = (self.joined(&key_of(entity, q)), self.joined(&[&offset, &recorded_at, record.data]));
        // It retracts nothing.
        let arrival = (self.joined(&key_of(entity, &offset)), self.joined(&[&recorded_at, &[0], q]));
        let id = self.joined(&[&id_of(q)[..ID_PREFIX_BYTES], &record.partition.to_be_bytes(), &offset]);
        self.timeline.push(timeline);
        self.arrivals.push(arrival);
        self.ids.push(id);
    }

    /// Adds an entity's checkpoint after the record at an offset; returns its size in bytes.
    pub fn add_checkpoint(
        &mut self,
        definition: &Definition,
        entity: &str,
        offset: i64,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> usize {
        let key = self.joined(&[entity.as_bytes(), &[0], &offset.to_be_bytes(), &definition.offset.to_be_bytes()]);
        let value = self.write(write);
        self.checkpoints.push((key, value));
        value.end - value.start
    }

    /// Puts the rows of each index in the order of their keys.
    pub fn sort(&mut self) {
        let Rows { bytes, timeline, arrivals, ids, checkpoints } = self;
        for rows in [timeline, arrivals, checkpoints] {
            rows.sort_unstable_by_key(|(key, _)| &bytes[key.start..key.end]);
        }
        ids.sort_unstable_by_key(|key| &bytes[key.start..key.end]);
    }

    /// Returns how much there is now.
    pub fn mark(&self) -> Mark {
        Mark {
            bytes: self.bytes.len(),
            timeline: self.timeline.len(),
            arrivals: self.arrivals.len(),
            ids: self.ids.len(),
            checkpoints: self.checkpoints.len(),
        }
    }

    /// Removes what was added since.
    pub fn truncate(&mut self, mark: &Mark) {
        self.bytes.truncate(mark.bytes);
        self.timeline.truncate(mark.timeline);
        self.arrivals.truncate(mark.arrivals);
        self.ids.truncate(mark.ids);
        self.checkpoints.truncate(mark.checkpoints);
    }
}
