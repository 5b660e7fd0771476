//! Folds one entity's records into its stored state, as streams/table/batch_fold.py does with each entity of a batch.
//!
//! 1. Decode the state and every record; if any of them cannot be folded directly, leave the whole entity to Python.
//! 2. Take the records in log order; skip those that are known.
//! 3. Fold each new record into the cells, and note its mutations, the rows of the indexes, and due checkpoints.
//! 4. Hash and pack the state, and write the change.
//!
//! This code does not read the database. So if only the timeline can tell whether a record is new, the entity is not
//! folded: the caller gets the list of these records, looks them up in the timeline, and passes the entity again with
//! the results.

use std::collections::HashMap;

use crate::avro::{write_long, write_text};
use crate::cell::{self, Asserted, Key, Mutation, Op, Q};
use crate::layout::{Definition, Layout, Reducer};
use crate::links::{self, LinkMutation};
use crate::observation::{Kind, Observation};
use crate::rows::{key_of, Rows, Span};
use crate::state::{id_of, State};
use crate::value::Value;

const ID_BYTES: usize = 32;
const CHECKPOINT_FIRST: i64 = 16;
const CHECKPOINT_STEP: i64 = 8;
const CHECKPOINT_BYTES_PER_VERSION: i64 = 1024;
const TAIL_BYTES: usize = 40;
/// About what a state of a few fields takes.
const STATE_BYTES: usize = 512;
const SIGN: u64 = 1 << 63;

/// A record of the entity, in log order. recorded_at in milliseconds.
pub struct Record<'a> {
    pub partition: u16,
    pub offset: i64,
    pub recorded_at: i64,
    pub id: &'a [u8],
    pub data: &'a [u8],
}

/// An entity's new version; its state and its change are in the rows.
pub struct Changed {
    pub state: Span,
    pub change: Span,
    pub version_before: i64,
    pub steps: usize,
    pub late: usize,
}

/// The outcome for an entity's records.
pub enum Outcome {
    /// None if all its records were known.
    Folded(Option<Changed>),
    /// Nothing was folded: these records, by index, must be looked up in the timeline, under these keys.
    Doubtful(Vec<(usize, Vec<u8>)>),
}

/// Whether the timeline has each record that was looked up, by the record's index.
pub type Told = HashMap<usize, bool>;

/// The result of replaying records into an entity's state.
pub struct Replayed {
    pub state: Option<Vec<u8>>,
    pub steps: usize,
}

/// A record, its decoded observation, and its order key.
struct Read<'a> {
    record: &'a Record<'a>,
    observation: Observation<'a>,
    q: Vec<u8>,
}

/// The mutations by one observation: of fields, by ascending index, and of a link.
#[derive(Default)]
struct Mutations<'a> {
    fields: Vec<Mutation<'a>>,
    link: Option<LinkMutation<'a>>,
}

/// Folds the records of one entity into its stored state; None if Python must fold it.
///
/// `through`: the batch's next offset. `told`: results of the timeline; empty if it was not asked. `rows`: gets the
/// entity's rows, state and change; a part of them may be in it if the entity is not folded.
#[allow(clippy::too_many_arguments)]
pub fn fold(
    layout: &Layout,
    definition: &Definition,
    entity: &str,
    packed: Option<&[u8]>,
    records: &[Record],
    through: i64,
    told: &Told,
    rows: &mut Rows,
) -> Option<Outcome> {
    let read = read_all(layout, entity, records)?;
    let mut state = State::read_or_empty(layout, packed)?;
    let (version_before, hash_before) = (state.version, state.hash);
    let mut size = packed.map_or(0, <[u8]>::len);
    let mut steps = Vec::new();
    let mut late = 0;
    for (place, Read { record, observation, q }) in read.iter().enumerate() {
        match is_known(&state, &read, place).or_else(|| told.get(&place).copied()) {
            Some(true) => continue,
            Some(false) => {}
            None if told.is_empty() => return Some(Outcome::Doubtful(doubtful(&mut state, entity, &read, place))),
            None => return None,
        }
        late += usize::from(q.as_slice() < state.greatest);
        let mutations = apply(layout, &mut state, observation, q)?;
        state.note(q, record.offset);
        rows.index(entity, record, q);
        if is_checkpoint_due(state.version, size) {
            size = rows.add_checkpoint(definition, entity, record.offset, |out| state.checkpoint(layout, out));
        }
        step(layout, &mut steps, record, observation, state.version, &mutations)?;
    }
    let count = usize::try_from(state.version - version_before).ok()?;
    if count == 0 {
        return Some(Outcome::Folded(None));
    }
    let hash = state.hash_now(layout, entity)?;
    let steps_count = i64::try_from(count).ok()?;
    let change = rows.write(|out| {
        out.extend_from_slice(&definition.change_frame);
        write_text(out, entity);
        out.extend_from_slice(&definition.fingerprint);
        write_long(out, version_before);
        write_long(out, state.version);
        match hash_before {
            Some(hash) => {
                out.push(2);
                out.extend_from_slice(hash);
            }
            None => out.push(0),
        }
        out.extend_from_slice(&hash);
        write_long(out, through);
        out.push(0); // not redefined
        write_long(out, steps_count);
        out.extend_from_slice(&steps);
        out.push(0);
    });
    let state = rows.write(|out| state.pack(layout, &hash, out));
    Some(Outcome::Folded(Some(Changed { state, change, version_before, steps: count, late })))
}

/// Folds the records of one entity into its stored state, and computes only the state; None if Python must fold it.
///
/// Returns the new state and the number of new records; no state if none was new.
pub fn replay(layout: &Layout, entity: &str, packed: Option<&[u8]>, records: &[Record]) -> Option<Replayed> {
    let read = read_all(layout, entity, records)?;
    let mut state = State::read_or_empty(layout, packed)?;
    let version_before = state.version;
    for (place, Read { record, observation, q }) in read.iter().enumerate() {
        // In the order of streams/rebuild/range_fold.py: in a damaged state, a record of the last ids may seem to be new.
        if !(state.is_among_last(record.id) || is_known(&state, &read, place)?) {
            apply(layout, &mut state, observation, q)?;
            state.note(q, record.offset);
        }
    }
    let steps = usize::try_from(state.version - version_before).ok()?;
    if steps == 0 {
        return Some(Replayed { state: None, steps });
    }
    let mut out = Vec::with_capacity(packed.map_or(STATE_BYTES, <[u8]>::len) + STATE_BYTES);
    state.pack(layout, &state.hash_now(layout, entity)?, &mut out);
    Some(Replayed { state: Some(out), steps })
}

/// Folds distinct observations of one entity from nothing, and returns its checkpoints after the records at some offsets,
/// which are ascending; None if Python must fold it.
pub fn checkpoints(layout: &Layout, entity: &str, records: &[Record], offsets: &[i64]) -> Option<Vec<Vec<u8>>> {
    let read = read_all(layout, entity, records)?;
    let mut state = State::empty(layout);
    let mut found = Vec::with_capacity(offsets.len());
    for Read { record, observation, q } in &read {
        apply(layout, &mut state, observation, q)?;
        state.note(q, record.offset);
        if offsets.get(found.len()) == Some(&record.offset) {
            let mut out = Vec::new();
            state.checkpoint(layout, &mut out);
            found.push(out);
        }
    }
    (found.len() == offsets.len()).then_some(found)
}

/// Decodes the records' observations and order keys.
fn read_all<'a>(layout: &'a Layout, entity: &str, records: &'a [Record<'a>]) -> Option<Vec<Read<'a>>> {
    #[cfg(feature = "wrong")]
    let records = crate::wrong::spoiled(records);
    let read = |record: &'a Record<'a>| {
        let observation = Observation::read(layout, record.data, true)?;
        if observation.entity != entity || record.id.len() != ID_BYTES || record.offset < 0 || record.recorded_at < 0 {
            return None;
        }
        let q = observation.order_key(record.id);
        Some(Read { record, observation, q })
    };
    records.iter().map(read).collect()
}

/// Returns whether the record at an index was folded before; None if only the timeline can tell.
fn is_known(state: &State, read: &[Read], place: usize) -> Option<bool> {
    let Read { record, q, .. } = &read[place];
    if state.is_certainly_new(q) {
        return Some(false);
    }
    let is_known = state.is_among_last(record.id) || read[..place].iter().any(|earlier| earlier.q == *q);
    is_known.then_some(true)
}

/// Returns the records from an index on that must be looked up in the timeline, on the assumption that each is new.
///
/// If one turns out to be known, another record that is not in the result may be in doubt. This is rare: then Python
/// folds the entity.
fn doubtful<'a>(state: &mut State<'a>, entity: &str, read: &'a [Read], from: usize) -> Vec<(usize, Vec<u8>)> {
    let mut found = Vec::new();
    for (place, Read { record, q, .. }) in read.iter().enumerate().skip(from) {
        match is_known(state, read, place) {
            Some(true) => continue,
            Some(false) => {}
            None => found.push((place, key_of(entity, q).concat())),
        }
        state.note(q, record.offset);
    }
    found
}

/// Folds an observation into the state (`Fold.directly` of reducers/fold.py); None if the entity must be reopened.
fn apply<'a>(
    layout: &Layout,
    state: &mut State<'a>,
    observation: &Observation<'a>,
    q: Q<'a>,
) -> Option<Mutations<'a>> {
    if !observation.retracts.is_empty() {
        return None;
    }
    let mut out = Mutations::default();
    if state.take_pending(id_of(q)) {
        return Some(out);
    }
    let priority = i64::from(observation.priority);
    if let Some(link) = &observation.link {
        out.link = links::fold(&mut state.links, link, observation.kind == Kind::Link, priority, q);
        return Some(out);
    }
    let is_in_order = q > state.greatest;
    if !is_in_order && !observation.cleared.is_empty() {
        return None;
    }
    let mut before = Vec::with_capacity(observation.cleared.len());
    for place in &observation.cleared {
        layout.fields[*place].folded()?;
        state.clears[*place] = Some(q);
        before.push((*place, state.cells[*place].take()));
    }
    for (place, value) in &observation.patch {
        let reducer = layout.fields[*place].folded()?.reducer;
        if !is_in_order && matches!(reducer, Reducer::Append { .. }) {
            return None;
        }
        if state.clears[*place].is_some_and(|clear| q < clear) {
            continue;
        }
        let said = Asserted { place: *place, value, priority, q };
        let cell = &mut state.cells[*place];
        let known = out.fields.len();
        *cell = Some(cell::fold(reducer, cell.take(), &said, &mut out.fields)?);
        if observation.cleared.contains(place) {
            out.fields.truncate(known);
        }
    }
    for (place, cell) in &before {
        cell::difference(*place, cell.as_ref(), state.cells[*place].as_ref(), &mut out.fields)?;
    }
    out.fields.sort_by_key(|each| each.place);
    Some(out)
}

/// Writes one step of a change (streams/change_codec.py).
fn step(
    layout: &Layout,
    out: &mut Vec<u8>,
    record: &Record,
    observation: &Observation,
    version: i64,
    mutations: &Mutations,
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
    let mut left = &mutations.fields[..];
    for (place, field) in layout.fields.iter().enumerate() {
        let count = left.iter().take_while(|each| each.place == place).count();
        if count == 0 {
            out.push(0);
            continue;
        }
        let (own, rest) = left.split_at(count);
        left = rest;
        out.push(2);
        write_long(out, i64::try_from(count).ok()?);
        for Mutation { op, key, old, new, .. } in own {
            out.push(op.byte());
            write_key(out, *key, field.reducer)?;
            for side in [old, new] {
                field.element.write(out, side.as_ref().unwrap_or(&Value::Null))?;
            }
            out.push(0); // the step's own observation
        }
        out.push(0);
    }
    match &mutations.link {
        None => out.push(0),
        Some(link) => {
            out.push(2);
            link.write(out);
            out.push(0);
        }
    }
    Some(())
}

/// Writes the key of a mutation; only mutations of map and append have one.
fn write_key(out: &mut Vec<u8>, key: Key, reducer: Option<Reducer>) -> Option<()> {
    match (key, reducer?) {
        (Key::Text(key), Reducer::Map) => write_text(out, key),
        (Key::Place(q, index), Reducer::Append { .. }) => {
            let (observed_at, rest) = q.split_first_chunk::<8>()?;
            let (names, tail) = rest.split_at(rest.len().checked_sub(TAIL_BYTES)?);
            let (seq, id) = tail.split_first_chunk::<8>()?;
            let mut names = names.split(|byte| *byte == 0);
            write_long(out, (u64::from_be_bytes(*observed_at) ^ SIGN) as i64);
            for _ in 0..2 {
                write_text(out, std::str::from_utf8(names.next()?).ok()?);
            }
            write_long(out, i64::try_from(u64::from_be_bytes(*seq)).ok()?);
            out.extend_from_slice(id);
            write_long(out, index);
        }
        (_, Reducer::Map | Reducer::Append { .. }) => return None,
        _ => {}
    }
    Some(())
}

impl Op {
    /// Its index in the enum of a change's schema.
    pub fn byte(self) -> u8 {
        (self as u8) << 1
    }
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
