//! An entity's state while it is folded: its stored form (reducers/entity.py), its hash (reducers/state.py), and how
//! new observations are told from known ones (reducers/dedup_state.py).

use std::borrow::Cow;

use sha2::{Digest, Sha256};

use crate::cbor;
use crate::cell::{Cell, Q};
use crate::layout::Layout;
use crate::links::{self, Links};
use crate::msgpack;

const FORMAT: i64 = 3;
const PARTS: usize = 14;
const SOURCES_HELD: usize = 4;
const IDS_HELD: usize = 4;
const ID_BYTES: usize = 32;
/// The length of an order key without agent and run: observed_at before them, seq and id after them.
const AROUND_BYTES: usize = 48;
const TAIL_BYTES: usize = 40;
const ORDER_KEY_BYTES_MIN: usize = AROUND_BYTES + 2;

/// The state of an entity. `cells` and `clears`: by the fields' indexes; a field's clear is the greatest one.
pub struct State<'a> {
    pub version: i64,
    pub hash: Option<&'a [u8]>,
    pub cells: Vec<Option<Cell<'a>>>,
    pub links: Links<'a>,
    pub clears: Vec<Option<Q<'a>>>,
    pub greatest: Q<'a>,
    sources: Vec<(&'a [u8], [u8; AROUND_BYTES])>,
    floor: Cow<'a, [u8]>,
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
            floor: Cow::Borrowed(&[]),
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
        for _ in 0..reader.map()? {
            state.read_cell(layout, &mut reader)?;
        }
        state.links = links::read(&mut reader)?;
        for _ in 0..reader.map()? {
            let place = *layout.places.get(reader.text()?)?;
            if state.clears[place].replace(order_key(reader.bytes()?)?).is_some() {
                return None;
            }
        }
        state.greatest = order_key(reader.bytes()?)?;
        let sources = reader.array()?;
        for _ in 0..sources {
            let source = reader.bytes()?;
            if state.source(source).is_some() {
                return None;
            }
            state.sources.push((source, [0; AROUND_BYTES]));
        }
        if reader.array()? != sources {
            return None;
        }
        for place in 0..sources {
            state.sources[place].1 = reader.bytes()?.try_into().ok()?;
        }
        state.floor = Cow::Borrowed(reader.bytes()?);
        for _ in 0..reader.array()? {
            state.last_ids.push(reader.bytes()?);
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

    fn read_cell(&mut self, layout: &Layout, reader: &mut msgpack::Reader<'a>) -> Option<()> {
        let place = *layout.places.get(reader.text()?)?;
        let cell = Cell::read(&layout.fields[place], reader)?;
        self.cells[place].replace(cell).is_none().then_some(())
    }

    /// Returns whether an observation was retracted before it arrived, and removes its id from `pending`. Such an
    /// observation only counts as a version.
    pub fn take_pending(&mut self, id: &[u8]) -> bool {
        let place = self.pending.iter().position(|each| *each == id);
        place.map(|place| self.pending.remove(place)).is_some()
    }

    fn source(&self, source: &[u8]) -> Option<usize> {
        self.sources.iter().position(|(held, _)| *held == source)
    }

    /// Returns whether no observation with this order key can have been folded yet.
    pub fn is_certainly_new(&self, q: &[u8]) -> bool {
        if q > self.greatest {
            return true;
        }
        if q <= &*self.floor {
            return false;
        }
        match self.source(source_of(q)) {
            None => true,
            Some(place) => around_of(q) > self.sources[place].1,
        }
    }

    /// Returns whether an id is among the last ones that were folded.
    pub fn is_among_last(&self, id: &[u8]) -> bool {
        self.last_ids.contains(&id)
    }

    /// Adds the next distinct observation, in log order.
    pub fn note(&mut self, q: &'a [u8], offset: i64) {
        self.version += 1;
        self.greatest = self.greatest.max(q);
        let (source, mut around) = (source_of(q), around_of(q));
        if let Some(place) = self.source(source) {
            around = around.max(self.sources.remove(place).1);
        }
        self.sources.push((source, around));
        if self.sources.len() > SOURCES_HELD {
            let (oldest, around) = self.sources.remove(0);
            let let_go = [&around[..8], oldest, &around[8..]].concat();
            if *let_go > *self.floor {
                self.floor = Cow::Owned(let_go);
            }
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
        self.pack_until_sources(layout, hash, out);
        msgpack::array(out, self.sources.len());
        for (source, _) in &self.sources {
            msgpack::bytes(out, source);
        }
        msgpack::array(out, self.sources.len());
        for (_, around) in &self.sources {
            msgpack::bytes(out, around);
        }
        msgpack::bytes(out, &self.floor);
        msgpack::array(out, self.last_ids.len());
        for id in &self.last_ids {
            msgpack::bytes(out, id);
        }
        self.pack_rest(out);
    }

    /// Writes the content of a checkpoint: no hash, and only the deduplication data that direct folding needs.
    pub fn checkpoint(&self, layout: &Layout, out: &mut Vec<u8>) {
        let start = out.len();
        self.pack_until_sources(layout, &[], out);
        msgpack::array(out, 0);
        msgpack::array(out, 0);
        msgpack::bytes(out, &[]);
        msgpack::array(out, 0);
        self.pack_rest(out);
        let checksum = crc32c::crc32c(&out[start..]);
        out.extend_from_slice(&checksum.to_be_bytes());
    }

    fn pack_until_sources(&self, layout: &Layout, hash: &[u8], out: &mut Vec<u8>) {
        msgpack::array(out, PARTS);
        msgpack::integer(out, FORMAT.into());
        msgpack::integer(out, self.version.into());
        msgpack::bytes(out, hash);
        msgpack::integer(out, self.highest_offset.into());
        msgpack::map(out, self.cells.iter().flatten().count());
        for place in &layout.by_name {
            if let Some(cell) = &self.cells[*place] {
                msgpack::text(out, &layout.fields[*place].name);
                cell.pack(out);
            }
        }
        links::pack(&self.links, out);
        msgpack::map(out, self.clears.iter().flatten().count());
        for place in &layout.by_name {
            if let Some(q) = self.clears[*place] {
                msgpack::text(out, &layout.fields[*place].name);
                msgpack::bytes(out, q);
            }
        }
        msgpack::bytes(out, self.greatest);
    }

    fn pack_rest(&self, out: &mut Vec<u8>) {
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
    &q[8..q.len() - TAIL_BYTES]
}

fn around_of(q: &[u8]) -> [u8; AROUND_BYTES] {
    let mut around = [0; AROUND_BYTES];
    around[..8].copy_from_slice(&q[..8]);
    around[8..].copy_from_slice(&q[q.len() - TAIL_BYTES..]);
    around
}
