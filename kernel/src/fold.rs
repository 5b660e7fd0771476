//! Folding one entity's records onto its stored state: what streams/table/batch.py does with each entity of a batch.
//!
//! 1. Read the state and every record; whatever is not of the direct kind makes the whole entity Python's.
//! 2. Take the records in log order; pass over those that are known.
//! 3. Fold each new one onto the cells, and note what it changed, the rows of the indexes, and checkpoints that are due.
//! 4. Hash and pack the state, and write the change.
//!
//! A record that can only be told from known ones by the timeline makes the entity Python's too: nothing is read here.

use crate::avro::{write_long, write_text};
use crate::layout::{Definition, Layout, Reducer};
use crate::observation::Observation;
use crate::state::{id_of, Cell, State};
use crate::value::Value;

const ID_BYTES: usize = 32;
const ID_PREFIX_BYTES: usize = 8;
const CHECKPOINT_FIRST: i64 = 16;
const CHECKPOINT_STEP: i64 = 8;
const CHECKPOINT_BYTES_PER_VERSION: i64 = 1024;
const SET: u8 = 0;

/// A record of the entity, in log order. recorded_at in milliseconds.
pub struct Record<'a> {
    pub partition: u16,
    pub offset: i64,
    pub recorded_at: i64,
    pub id: &'a [u8],
    pub data: &'a [u8],
}

/// The rows that a fold puts into the indexes, as keys and values in turn; `ids` has keys alone.
#[derive(Default)]
pub struct Rows {
    pub timeline: Vec<(Vec<u8>, Vec<u8>)>,
    pub arrivals: Vec<(Vec<u8>, Vec<u8>)>,
    pub ids: Vec<Vec<u8>>,
    pub checkpoints: Vec<(Vec<u8>, Vec<u8>)>,
}

/// What became of an entity. `state` and `change` only where it has a new version.
pub struct Folding {
    pub changed: Option<Changed>,
    pub rows: Rows,
}

pub struct Changed {
    pub state: Vec<u8>,
    pub change: Vec<u8>,
    pub version_before: i64,
    pub steps: usize,
    pub late: usize,
}

/// The value that one observation changed in one field.
struct Mutation<'a> {
    old: Option<Value<'a>>,
    new: Value<'a>,
}

/// Folds the records of one entity onto its stored state; None where Python has to. through: the next offset of the batch.
pub fn fold(
    layout: &Layout,
    definition: &Definition,
    entity: &str,
    packed: Option<&[u8]>,
    records: &[Record],
    through: i64,
) -> Option<Folding> {
    let mut read = Vec::with_capacity(records.len());
    for record in records {
        let observation = Observation::read(layout, record.data, true)?;
        if observation.entity != entity || record.id.len() != ID_BYTES || record.offset < 0 || record.recorded_at < 0 {
            return None;
        }
        let q = observation.order_key(record.id);
        read.push((record, observation, q));
    }
    let mut state = match packed {
        Some(packed) => State::read(layout, packed)?,
        None => State::empty(layout),
    };
    let (version_before, hash_before) = (state.version, state.hash);
    let mut size = packed.map_or(0, <[u8]>::len);
    let mut rows = Rows::default();
    let mut steps = Vec::new();
    let mut late = 0;
    for (place, (record, observation, q)) in read.iter().enumerate() {
        if !state.is_certainly_new(q) {
            let is_known = state.is_among_last(record.id) || read[..place].iter().any(|(_, _, earlier)| earlier == q);
            if is_known {
                continue;
            }
            return None;
        }
        late += usize::from(q.as_slice() < state.greatest);
        let mutations = apply(layout, &mut state, observation, q)?;
        state.note(q, record.offset);
        rows.index(entity, record, q);
        if is_checkpoint_due(state.version, size) {
            let value = state.checkpoint(layout);
            size = value.len();
            rows.checkpoints.push((checkpoint_key(definition, entity, record.offset), value));
        }
        step(layout, &mut steps, record, observation, state.version, &mutations)?;
    }
    let count = usize::try_from(state.version - version_before).ok()?;
    if count == 0 {
        return Some(Folding { changed: None, rows });
    }
    let hash = state.hash_now(layout, entity);
    let mut change = Vec::with_capacity(256 + entity.len() + steps.len());
    change.extend_from_slice(&definition.change_frame);
    write_text(&mut change, entity);
    change.extend_from_slice(&definition.fingerprint);
    write_long(&mut change, version_before);
    write_long(&mut change, state.version);
    match hash_before {
        Some(hash) => {
            change.push(2);
            change.extend_from_slice(hash);
        }
        None => change.push(0),
    }
    change.extend_from_slice(&hash);
    write_long(&mut change, through);
    change.push(0); // not redefined
    write_long(&mut change, i64::try_from(count).ok()?);
    change.extend_from_slice(&steps);
    change.push(0);
    let changed = Changed { state: state.pack(layout, &hash), change, version_before, steps: count, late };
    Some(Folding { changed: Some(changed), rows })
}

/// Folds an observation onto the cells; what it changed, by the fields' places in ascending order.
fn apply<'a>(
    layout: &Layout,
    state: &mut State<'a>,
    observation: &Observation<'a>,
    q: &'a [u8],
) -> Option<Vec<(usize, Mutation<'a>)>> {
    let mut mutations = Vec::with_capacity(observation.patch.len());
    let priority = i64::from(observation.priority);
    for (place, value) in &observation.patch {
        let (_, reducer) = layout.fields[*place].folded()?;
        let cell = &mut state.cells[*place];
        let old = match cell {
            Some(held) if !beats(reducer, value, priority, q, held)? => continue,
            Some(held) => Some(held.value),
            None => None,
        };
        if old != Some(*value) {
            mutations.push((*place, Mutation { old, new: *value }));
        }
        *cell = Some(Cell { value: *value, priority, q });
    }
    Some(mutations)
}

/// Whether an assertion takes a field from its winner (reducers/scalar.py).
fn beats(reducer: Reducer, value: &Value, priority: i64, q: &[u8], held: &Cell) -> Option<bool> {
    let by_priority = priority.cmp(&held.priority);
    Some(match reducer {
        Reducer::Latest => by_priority.then_with(|| q.cmp(held.q)).is_gt(),
        Reducer::First => by_priority.then_with(|| held.q.cmp(q)).is_gt(),
        Reducer::Least => held.value.compare(value)?.then_with(|| held.q.cmp(q)).is_gt(),
        Reducer::Greatest => value.compare(&held.value)?.then_with(|| held.q.cmp(q)).is_gt(),
    })
}

/// One step of a change (streams/change_codec.py).
fn step(
    layout: &Layout,
    out: &mut Vec<u8>,
    record: &Record,
    observation: &Observation,
    version: i64,
    mutations: &[(usize, Mutation)],
) -> Option<()> {
    let source = &observation.source;
    write_long(out, record.offset);
    write_long(out, version);
    out.extend_from_slice(record.id);
    write_long(out, observation.observed_at);
    write_long(out, record.recorded_at);
    for name in [source.agent, source.run, source.step, source.tool] {
        write_text(out, name);
    }
    write_long(out, source.seq);
    let mut next = mutations.iter().peekable();
    for (place, field) in layout.fields.iter().enumerate() {
        match next.next_if(|(changed, _)| *changed == place) {
            None => out.push(0),
            Some((_, mutation)) => {
                let (branch, _) = field.folded()?;
                out.extend_from_slice(&[2, 2, SET]); // present, one mutation, its operation
                match &mutation.old {
                    None => out.push(0),
                    Some(old) => {
                        out.push(branch.byte);
                        branch.kind.write(out, old)?;
                    }
                }
                out.push(branch.byte);
                branch.kind.write(out, &mutation.new)?;
                out.extend_from_slice(&[0, 0]); // the step's own observation, and no further mutation
            }
        }
    }
    out.push(0); // links
    Some(())
}

fn is_checkpoint_due(version: i64, size: usize) -> bool {
    if version < CHECKPOINT_FIRST || version % CHECKPOINT_STEP != 0 {
        return false;
    }
    let mut step = CHECKPOINT_STEP;
    while ((step * CHECKPOINT_BYTES_PER_VERSION) as usize) < size {
        step *= 2;
    }
    version % step == 0 || version & (version - 1) == 0
}

/// What the keys of an entity's rows begin with (streams/table/keys.py).
fn key_of(entity: &str, rest: usize) -> Vec<u8> {
    let mut key = Vec::with_capacity(entity.len() + 1 + rest);
    key.extend_from_slice(entity.as_bytes());
    key.push(0);
    key
}

fn checkpoint_key(definition: &Definition, entity: &str, offset: i64) -> Vec<u8> {
    let mut key = key_of(entity, 16);
    key.extend_from_slice(&offset.to_be_bytes());
    key.extend_from_slice(&definition.offset.to_be_bytes());
    key
}

impl Rows {
    /// The entries of a first occurrence.
    fn index(&mut self, entity: &str, record: &Record, q: &[u8]) {
        let (offset, recorded_at) = (record.offset.to_be_bytes(), record.recorded_at.to_be_bytes());
        let mut key = key_of(entity, q.len());
        key.extend_from_slice(q);
        self.timeline.push((key, [&offset, &recorded_at, record.data].concat()));
        let mut key = key_of(entity, offset.len());
        key.extend_from_slice(&offset);
        self.arrivals.push((key, [&recorded_at, [0].as_slice(), q].concat())); // it retracts nothing
        self.ids.push([&id_of(q)[..ID_PREFIX_BYTES], &record.partition.to_be_bytes(), &offset].concat());
    }
}
