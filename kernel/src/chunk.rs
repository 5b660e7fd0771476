//! Writes a table's rows as chunks of `.snapshots`, with the digests of its buckets: streams/snapshots/chunk.py and
//! buckets.py.

use std::collections::BTreeMap;
use std::mem;

use sha2::{Digest, Sha256};

const FORMAT: u8 = 1;
const PLACE_BYTES: usize = 3;
const DIGEST_BYTES: usize = 32;
const BUCKETS: usize = 256;
/// MessagePack's head of 32 bytes.
const HASH_HEAD: [u8; 2] = [0xc4, 0x20];

/// The buckets of a slot. preimages: what the digest of each covers; empty for an empty bucket.
pub struct Slot {
    pub digests: Vec<u8>,
    pub preimages: Vec<Vec<u8>>,
}

/// The end of a table: the chunk that is left, if any, the buckets by slot, and the number of entities.
pub struct Ended {
    pub last: Option<Vec<u8>>,
    pub slots: BTreeMap<u32, Slot>,
    pub entities: usize,
}

/// Collects entities in the order of their places and keys. limit: a chunk is full from this size on.
pub struct BaseWriter {
    limit: usize,
    entities: usize,
    slots: BTreeMap<u32, Slot>,
    chunk: Chunk,
    last: Vec<u8>,
}

/// The chunk that is being filled; see chunk.py. The last group is unfinished.
#[derive(Default)]
struct Chunk {
    places: Vec<u32>,
    firsts: Vec<u32>,
    starts: Vec<u32>,
    ends: Vec<u32>,
    preimages: Vec<u8>,
    bodies: Vec<u8>,
}

impl BaseWriter {
    pub fn new(limit: usize) -> Self {
        BaseWriter { limit, entities: 0, slots: BTreeMap::new(), chunk: Chunk::default(), last: Vec::new() }
    }

    /// Adds an entity by its `placed` key, and returns a chunk that was full before it; None if the entity is damaged or
    /// does not follow the last one.
    pub fn add(&mut self, placed: &[u8], state: &[u8]) -> Option<Option<Vec<u8>>> {
        let (place, key) = placed.split_at_checked(PLACE_BYTES)?;
        let place = place.iter().fold(0, |number, byte| number << 8 | u32::from(*byte));
        let hash = stored_hash(state)?;
        if self.entities > 0 && placed <= self.last.as_slice() {
            return None;
        }
        let mut full = None;
        if self.chunk.places.last() != Some(&place) {
            self.end_group();
            if self.chunk.preimages.len() + self.chunk.bodies.len() >= self.limit && !self.chunk.places.is_empty() {
                full = Some(mem::take(&mut self.chunk).sealed()?);
            }
            self.chunk.begin_group(place)?;
        }
        self.chunk.preimages.extend(u32::try_from(key.len()).ok()?.to_be_bytes());
        self.chunk.preimages.extend(key);
        self.chunk.preimages.extend(hash);
        self.chunk.bodies.extend(state);
        self.chunk.ends.push(u32::try_from(self.chunk.bodies.len()).ok()?);
        self.entities += 1;
        self.last.clear();
        self.last.extend(placed);
        Some(full)
    }

    /// Ends the table.
    pub fn end(&mut self) -> Option<Ended> {
        self.end_group();
        let left = mem::take(&mut self.chunk);
        let last = if left.places.is_empty() { None } else { Some(left.sealed()?) };
        Some(Ended { last, slots: mem::take(&mut self.slots), entities: self.entities })
    }

    fn end_group(&mut self) {
        let (Some(place), Some(start)) = (self.chunk.places.last(), self.chunk.starts.last()) else {
            return;
        };
        let (slot, bucket) = (place >> 8, (place & 0xFF) as usize);
        let preimage = self.chunk.preimages[*start as usize..].to_vec();
        let slot = self.slots.entry(slot).or_insert_with(|| Slot {
            digests: vec![0; BUCKETS * DIGEST_BYTES],
            preimages: vec![Vec::new(); BUCKETS],
        });
        slot.digests[bucket * DIGEST_BYTES..][..DIGEST_BYTES].copy_from_slice(&Sha256::digest(&preimage));
        slot.preimages[bucket] = preimage;
    }
}

impl Chunk {
    fn begin_group(&mut self, place: u32) -> Option<()> {
        self.places.push(place);
        self.firsts.push(u32::try_from(self.ends.len()).ok()?);
        self.starts.push(u32::try_from(self.preimages.len()).ok()?);
        Some(())
    }

    fn sealed(self) -> Option<Vec<u8>> {
        let tables = [&self.places, &self.firsts, &self.starts, &self.ends];
        let numbers = tables.iter().map(|table| table.len()).sum::<usize>();
        let mut data = Vec::with_capacity(17 + 4 * numbers + self.preimages.len() + self.bodies.len());
        data.push(FORMAT);
        for size in [self.places.len(), self.ends.len(), self.preimages.len()] {
            data.extend(u32::try_from(size).ok()?.to_be_bytes());
        }
        for number in tables.into_iter().flatten() {
            data.extend(number.to_le_bytes());
        }
        data.extend(&self.preimages);
        data.extend(&self.bodies);
        let checksum = crc32c::crc32c(&data);
        data.extend(checksum.to_be_bytes());
        Some(data)
    }
}

/// Returns the state hash in a stored form (`stored_hash` of reducers/entity.py), without reading the rest.
fn stored_hash(state: &[u8]) -> Option<&[u8]> {
    let at = match *state.get(2)? {
        0x00..=0x7f => 3,
        head @ 0xcc..=0xcf => 3 + (1 << (head - 0xcc)),
        _ => return None,
    };
    state.get(at..)?.strip_prefix(&HASH_HEAD)?.get(..DIGEST_BYTES)
}
