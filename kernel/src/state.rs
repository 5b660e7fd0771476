//! An entity's state while it is folded: its stored form (reducers/entity.py), its hash (reducers/state.py), and how
//! new observations are told from known ones (reducers/dedup_state.py).

use sha2::{Digest, Sha256};

use crate::cbor;
use crate::cell::{Cell, Q};
use crate::layout::Layout;
use crate::links::{self, Links};
use crate::msgpack;
use crate::order_keys::OrderKeys;

const FORMAT: i64 = 4;
const PARTS: usize = 14;
const SOURCES_HELD: usize = 4;
const IDS_HELD: usize = 4;
const ID_BYTES: usize = 32;
/// The parts of an order key before and after agent and run: observed_at, and seq and id.
const TIME_BYTES: usize = 8;
const TAIL_BYTES: usize = 40;
const ORDER_KEY_BYTES_MIN: usize = TIME_BYTES + TAIL_BYTES + 2;

/// The state of an entity. `cells` and `clears`: by the fields' indexes; a field's clear is the greatest one.
pub struct State<'a> {
    pub version: i64,
    pub hash: Option<&'a [u8]>,
    pub cells: Vec<Option<Cell<'a>>>,
    pub links: Links<'a>,
    pub clears: Vec<Option<Q<'a>>>,
    pub greatest: Q<'a>,
    /// The greatest order key of each of the last sources, the latest last.
    sources: Vec<Q<'a>>,
    /// Empty if no source was dropped.
    floor: Q<'a>,
    last_ids: Vec<&'a [u8]>,
    /// Ids that are retracted but not yet seen, sorted.
    pending: Vec<&'a [u8]>,
    lowest_offset: Option<i64>,
    highest_offset: i64,
}

impl<'a> State<'a> {
    /// Returns the state of an entity without observations.
    pub fn empty(layout: &Layout) -> Self {
        State {
            version: 0,
            hash: None,
            cells: vec![None; layout.fields.len()],
            links: Links::new(),
            clears: vec![None; layout.fields.len()],
            greatest: &[],
            sources: Vec::new(),
            floor: &[],
            last_ids: Vec::new(),
            pending: Vec::new(),
            lowest_offset: None,
            highest_offset: 0,
        }
    }

    /// Reads a stored state, or returns that of an entity without observations; None if Python must decide.
    pub fn read_or_empty(layout: &Layout, packed: Option<&'a [u8]>) -> Option<Self> {
        packed.map_or_else(|| Some(State::empty(layout)), |packed| State::read(layout, packed))
    }

    /// Reads a state in its stored form; None if Python must read or fold it.
    pub fn read(layout: &Layout, packed: &'a [u8]) -> Option<Self> {
        let mut reader = msgpack::Reader::new(packed);
        let mut state = State::empty(layout);
        if reader.array()? != PARTS || reader.count()? != FORMAT {
            return None;
        }
        state.version = reader.count()?;
        state.hash = Some(reader.bytes().filter(|hash| hash.len() == ID_BYTES)?);
        state.highest_offset = reader.count()?;
        let keys = OrderKeys::read(&mut reader)?;
        for _ in 0..reader.map()? {
            state.read_cell(layout, &mut reader, &keys)?;
        }
        state.links = links::read(&mut reader, &keys)?;
        for _ in 0..reader.map()? {
            let place = *layout.places.get(reader.text()?)?;
            if state.clears[place].replace(keys.numbered(&mut reader)?).is_some() {
                return None;
            }
        }
        state.greatest = keys.numbered(&mut reader)?;
        for _ in 0..reader.array()? {
            let q = keys.numbered(&mut reader)?;
            if state.source(source_of(q)).is_some() {
                return None;
            }
            state.sources.push(q);
        }
        if !reader.is_nil() {
            state.floor = keys.numbered(&mut reader)?;
        }
        for _ in 0..reader.array()? {
            let id = if reader.has_bytes() { reader.bytes()? } else { id_of(keys.numbered(&mut reader)?) };
            state.last_ids.push(id);
        }
        for _ in 0..reader.array()? {
            state.pending.push(reader.bytes()?);
        }
        if state.pending.windows(2).any(|pair| pair[0] >= pair[1]) {
            return None;
        }
        state.lowest_offset = Some(reader.count()?);
        reader.is_at_end().then_some(state)
    }

    fn read_cell(&mut self, layout: &Layout, reader: &mut msgpack::Reader<'a>, keys: &OrderKeys<'a>) -> Option<()> {
        let place = *layout.places.get(reader.text()?)?;
        let cell = Cell::read(&layout.fields[place], reader, keys)?;
        self.cells[place].replace(cell).is_none().then_some(())
    }

    /// Returns whether an observation was retracted before it arrived, and removes its id from `pending`. Such an
    /// observation only counts as a version.
    pub fn take_pending(&mut self, id: &[u8]) -> bool {
        let place = self.pending.iter().position(|each| *each == id);
        place.map(|place| self.pending.remove(place)).is_some()
    }

    fn source(&self, source: &[u8]) -> Option<usize> {
        self.sources.iter().position(|held| source_of(held) == source)
    }

    /// Returns whether no observation with this order key can have been folded yet.
    pub fn is_certainly_new(&self, q: Q) -> bool {
        if q > self.greatest {
            return true;
        }
        if q <= self.floor {
            return false;
        }
        match self.source(source_of(q)) {
            None => true,
            Some(place) => q > self.sources[place],
        }
    }

    /// Returns whether an id is among the last ones that were folded.
    pub fn is_among_last(&self, id: &[u8]) -> bool {
        self.last_ids.contains(&id)
    }

    /// Adds the next distinct observation, in log order.
    pub fn note(&mut self, q: Q<'a>, offset: i64) {
        self.version += 1;
        self.greatest = self.greatest.max(q);
        let held = self.source(source_of(q)).map(|place| self.sources.remove(place));
        self.sources.push(held.map_or(q, |held| q.max(held)));
        if self.sources.len() > SOURCES_HELD {
            self.floor = self.floor.max(self.sources.remove(0));
        }
        self.last_ids.push(id_of(q));
        let spare = self.last_ids.len().saturating_sub(IDS_HELD);
        self.last_ids.drain(..spare);
        self.lowest_offset.get_or_insert(offset);
        self.highest_offset = offset;
    }

    /// Returns the SHA-256 of the canonical state; None if Python must compute it.
    pub fn hash_now(&self, layout: &Layout, entity: &str) -> Option<[u8; 32]> {
        let present = || {
            let cells = layout.by_key.iter().map(|place| (&layout.fields[*place], self.cells[*place].as_ref()));
            cells.filter_map(|(field, cell)| Some((field, cell.filter(|cell| cell.is_present())?)))
        };
        let count = present().count();
        let mut out = Vec::with_capacity(64 + entity.len() + 96 * count);
        cbor::map_head(&mut out, 6);
        cbor::text(&mut out, "by");
        cbor::map_head(&mut out, count);
        for (field, cell) in present() {
            out.extend_from_slice(&field.key);
            cell.hash_holders(&mut out);
        }
        cbor::text(&mut out, "links");
        links::hash(&self.links, &mut out);
        cbor::text(&mut out, "entity");
        cbor::text(&mut out, entity);
        cbor::text(&mut out, "fields");
        cbor::map_head(&mut out, count);
        for (field, cell) in present() {
            out.extend_from_slice(&field.key);
            cell.hash_value(&mut out)?;
        }
        cbor::text(&mut out, "format");
        cbor::unsigned(&mut out, 1);
        cbor::text(&mut out, "version");
        cbor::unsigned(&mut out, self.version as u64);
        Some(Sha256::digest(&out).into())
    }

    /// Writes the stored form.
    pub fn pack(&self, layout: &Layout, hash: &[u8; 32], out: &mut Vec<u8>) {
        self.pack_with(layout, hash, &self.sources, self.floor, &self.last_ids, out);
    }

    /// Writes the content of a checkpoint: no hash, and only the deduplication data that direct folding needs.
    pub fn checkpoint(&self, layout: &Layout, out: &mut Vec<u8>) {
        let start = out.len();
        self.pack_with(layout, &[], &[], &[], &[], out);
        let checksum = crc32c::crc32c(&out[start..]);
        out.extend_from_slice(&checksum.to_be_bytes());
    }

    fn pack_with(
        &self,
        layout: &Layout,
        hash: &[u8],
        sources: &[Q<'a>],
        floor: Q<'a>,
        last_ids: &[&[u8]],
        out: &mut Vec<u8>,
    ) {
        let mut keys = vec![self.greatest, floor];
        keys.extend(sources);
        keys.extend(self.clears.iter().flatten());
        keys.extend(links::order_keys(&self.links));
        self.cells.iter().flatten().for_each(|cell| cell.add_order_keys(&mut keys));
        let keys = OrderKeys::of(keys);
        msgpack::array(out, PARTS);
        msgpack::integer(out, FORMAT.into());
        msgpack::integer(out, self.version.into());
        msgpack::bytes(out, hash);
        msgpack::integer(out, self.highest_offset.into());
        keys.pack(out);
        msgpack::map(out, self.cells.iter().flatten().count());
        for place in &layout.by_name {
            if let Some(cell) = &self.cells[*place] {
                msgpack::text(out, &layout.fields[*place].name);
                cell.pack(&keys, out);
            }
        }
        links::pack(&self.links, &keys, out);
        msgpack::map(out, self.clears.iter().flatten().count());
        for place in &layout.by_name {
            if let Some(q) = self.clears[*place] {
                msgpack::text(out, &layout.fields[*place].name);
                keys.pack_number(q, out);
            }
        }
        keys.pack_number(self.greatest, out);
        msgpack::array(out, sources.len());
        sources.iter().for_each(|q| keys.pack_number(q, out));
        keys.pack_number(floor, out);
        msgpack::array(out, last_ids.len());
        for id in last_ids {
            match sources.iter().rfind(|q| id_of(q) == *id) {
                Some(q) => keys.pack_number(q, out),
                None => msgpack::bytes(out, id),
            }
        }
        msgpack::array(out, self.pending.len());
        self.pending.iter().for_each(|id| msgpack::bytes(out, id));
        msgpack::integer(out, self.lowest_offset.unwrap_or(-1).into());
    }
}

/// Returns the id at the end of an order key.
pub fn id_of(q: &[u8]) -> &[u8] {
    &q[q.len() - ID_BYTES..]
}

/// Returns the bytes if they are long enough for an order key.
pub fn order_key(q: &[u8]) -> Option<&[u8]> {
    (q.len() >= ORDER_KEY_BYTES_MIN).then_some(q)
}

fn source_of(q: &[u8]) -> &[u8] {
    &q[TIME_BYTES..q.len() - TAIL_BYTES]
}
