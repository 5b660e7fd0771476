//! Writes a table's rows, or those that changed, as chunks of `.snapshots`, with the digests of their buckets:
//! streams/snapshots/chunk.py and buckets.py.

use std::collections::BTreeMap;
use std::mem;

use sha2::{Digest, Sha256};

const FORMAT: u8 = 1;
pub const PLACE_BYTES: usize = 3;
pub const DIGEST_BYTES: usize = 32;
pub const BUCKETS: usize = 256;
const HEAD_BYTES: usize = 13;
const NUMBER_BYTES: usize = 4;
/// The length of a key, before it.
const LENGTH_BYTES: usize = 4;
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
        let (place, key) = split(placed)?;
        let (hash, _) = stored_hash(state)?;
        if self.entities > 0 && placed <= self.last.as_slice() {
            return None;
        }
        let mut full = None;
        if self.chunk.places.last() != Some(&place) {
            self.end_group();
            full = self.chunk.full(self.limit)?;
            self.chunk.begin_group(place)?;
        }
        self.chunk.put(key, hash, state)?;
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
            digests: no_digests(),
            preimages: vec![Vec::new(); BUCKETS],
        });
        hash_bucket(&mut slot.digests, bucket, &preimage);
        slot.preimages[bucket] = preimage;
    }
}

/// Collects the entities that changed at or after an offset, in the order of their places and keys. is_whole: the given
/// rows are all entities of their places.
pub struct DeltaWriter {
    limit: usize,
    start: u64,
    is_whole: bool,
    entities: usize,
    chunk: Chunk,
    last: Vec<u8>,
}

/// The chunks that are full, and for each place what its bucket's digest covers: of all of its entities if `is_whole`,
/// otherwise of the changed ones, and only for places with changed ones.
#[derive(Default)]
pub struct Added {
    pub chunks: Vec<Vec<u8>>,
    pub places: Vec<u32>,
    pub preimages: Vec<Vec<u8>>,
}

impl DeltaWriter {
    pub fn new(limit: usize, start: u64, is_whole: bool) -> Self {
        DeltaWriter { limit, start, is_whole, entities: 0, chunk: Chunk::default(), last: Vec::new() }
    }

    /// Adds rows (`placed` key, state) of whole places; None if a row is damaged or does not follow the last one.
    pub fn add(&mut self, rows: &[(&[u8], &[u8])]) -> Option<Added> {
        let mut added = Added::default();
        for group in rows.chunk_by(|(one, _), (other, _)| one.get(..PLACE_BYTES) == other.get(..PLACE_BYTES)) {
            self.add_group(group, &mut added)?;
        }
        Some(added)
    }

    fn add_group(&mut self, group: &[(&[u8], &[u8])], added: &mut Added) -> Option<()> {
        let (place, _) = split(group.first()?.0)?;
        let mut covered = Vec::new();
        let mut has_begun = false;
        for (placed, state) in group {
            let (_, key) = split(placed)?;
            let (hash, rest) = stored_hash(state)?;
            let (highest, _) = integer(rest)?;
            if *placed <= self.last.as_slice() {
                return None;
            }
            self.last.clear();
            self.last.extend(*placed);
            let is_changed = highest >= self.start;
            if is_changed || self.is_whole {
                put_preimage(&mut covered, key, hash)?;
            }
            if is_changed {
                if !has_begun {
                    added.chunks.extend(self.chunk.full(self.limit)?);
                    self.chunk.begin_group(place)?;
                    has_begun = true;
                }
                self.chunk.put(key, hash, state)?;
                self.entities += 1;
            }
        }
        if !covered.is_empty() {
            added.places.push(place);
            added.preimages.push(covered);
        }
        Some(())
    }

    /// Returns the chunk that is left, if any, and the number of changed entities.
    pub fn end(&mut self) -> Option<(Option<Vec<u8>>, usize)> {
        let left = mem::take(&mut self.chunk);
        let last = if left.places.is_empty() { None } else { Some(left.sealed()?) };
        Some((last, self.entities))
    }
}

/// Returns the digests of a slot's buckets, all of them empty.
pub fn no_digests() -> Vec<u8> {
    vec![0; BUCKETS * DIGEST_BYTES]
}

/// Sets a bucket's digest among those of its slot.
pub fn hash_bucket(digests: &mut [u8], bucket: usize, preimage: &[u8]) {
    digests[bucket * DIGEST_BYTES..][..DIGEST_BYTES].copy_from_slice(&Sha256::digest(preimage));
}

/// Returns a bucket's preimage with that of some of its entities over it, and the digest; None if one is damaged.
pub fn merged(before: &[u8], own: &[u8]) -> Option<(Vec<u8>, [u8; DIGEST_BYTES])> {
    let whole = merged_preimages(before, own)?;
    let digest = Sha256::digest(&whole).into();
    Some((whole, digest))
}

/// Returns a bucket's preimage with that of some of its entities over it; None if one is damaged.
pub fn merged_preimages(before: &[u8], own: &[u8]) -> Option<Vec<u8>> {
    let mut whole = Vec::with_capacity(before.len() + own.len());
    let mut before = parts(before)?.into_iter().peekable();
    for (key, part) in parts(own)? {
        while let Some((_, earlier)) = before.next_if(|(earlier, _)| *earlier < key) {
            whole.extend(earlier);
        }
        before.next_if(|(earlier, _)| *earlier == key);
        whole.extend(part);
    }
    whole.extend(before.flat_map(|(_, part)| part));
    Some(whole)
}

/// Returns whether two preimages differ at most in the hash of their last entity: most have one entity.
pub fn has_the_same_entity(one: &[u8], other: &[u8]) -> bool {
    match (one.split_last_chunk::<DIGEST_BYTES>(), other.split_last_chunk::<DIGEST_BYTES>()) {
        (Some((one, _)), Some((other, _))) => one == other,
        _ => false,
    }
}

type Number = [u8; NUMBER_BYTES];

/// The groups of a chunk that was read.
pub struct Groups<'a> {
    places: &'a [Number],
    firsts: &'a [Number],
    starts: &'a [Number],
    ends: &'a [Number],
    preimages: &'a [u8],
    bodies: &'a [u8],
}

impl<'a> Groups<'a> {
    /// Finds the groups of a chunk; None if it is damaged.
    pub fn of(data: &'a [u8]) -> Option<Self> {
        let (head, rest) = data.split_first_chunk::<HEAD_BYTES>()?;
        let (format, sizes) = head.split_first()?;
        let [groups, entities, preimages] = sizes.as_chunks::<NUMBER_BYTES>().0 else { return None };
        let size = |given: &Number| u32::from_be_bytes(*given) as usize;
        let groups = size(groups);
        let (tables, rest) = rest.split_at_checked(NUMBER_BYTES.checked_mul(groups)?.checked_mul(3)?)?;
        let (ends, rest) = rest.split_at_checked(NUMBER_BYTES.checked_mul(size(entities))?)?;
        let (preimages, bodies) = rest.split_at_checked(size(preimages))?;
        let (places, rest) = tables.as_chunks::<NUMBER_BYTES>().0.split_at(groups);
        let (firsts, starts) = rest.split_at(groups);
        let ends = ends.as_chunks::<NUMBER_BYTES>().0;
        (*format == FORMAT).then_some(Groups { places, firsts, starts, ends, preimages, bodies })
    }

    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Returns a group's place and preimage; None if it is damaged.
    pub fn get(&self, group: usize) -> Option<(u32, &'a [u8])> {
        Some((number(self.places, group)?, self.preimage(group)?))
    }

    fn preimage(&self, group: usize) -> Option<&'a [u8]> {
        let start = number(self.starts, group)? as usize;
        let end = number(self.starts, group + 1).map_or(self.preimages.len(), |end| end as usize);
        self.preimages.get(start..end)
    }

    /// Returns the key and the stored form of each entity of a group; None if the chunk is damaged.
    pub fn members(&self, group: usize) -> Option<Vec<(&'a [u8], &'a [u8])>> {
        let first = number(self.firsts, group)? as usize;
        let mut start = first.checked_sub(1).map_or(Some(0), |last| number(self.ends, last))? as usize;
        let mut found = Vec::new();
        for (entity, (key, _)) in parts(self.preimage(group)?)?.into_iter().enumerate() {
            let end = number(self.ends, first + entity)? as usize;
            found.push((key, self.bodies.get(start..end)?));
            start = end;
        }
        Some(found)
    }

    /// Returns the stored form of a key's entity in a group, if it is there; None if the chunk is damaged.
    pub fn find(&self, group: usize, key: &[u8]) -> Option<Option<&'a [u8]>> {
        let mut preimage = self.preimage(group)?;
        let mut entity = number(self.firsts, group)? as usize;
        while !preimage.is_empty() {
            let (length, rest) = preimage.split_first_chunk::<LENGTH_BYTES>()?;
            let (found, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
            if found == key {
                let start = entity.checked_sub(1).map_or(Some(0), |last| number(self.ends, last))? as usize;
                return self.bodies.get(start..number(self.ends, entity)? as usize).map(Some);
            }
            preimage = rest.get(DIGEST_BYTES..)?;
            entity += 1;
        }
        Some(None)
    }
}

fn number(table: &[Number], at: usize) -> Option<u32> {
    table.get(at).map(|each| u32::from_le_bytes(*each))
}

/// Returns the key and all bytes of each entity in a preimage; None if it is damaged, or its keys are not ascending.
fn parts(mut preimage: &[u8]) -> Option<Vec<(&[u8], &[u8])>> {
    let mut found: Vec<(&[u8], &[u8])> = Vec::new();
    while !preimage.is_empty() {
        let (length, rest) = preimage.split_first_chunk::<LENGTH_BYTES>()?;
        let length = u32::from_be_bytes(*length) as usize;
        let key = rest.get(..length)?;
        let (part, rest) = preimage.split_at_checked(length.checked_add(LENGTH_BYTES + DIGEST_BYTES)?)?;
        if found.last().is_some_and(|(last, _)| *last >= key) {
            return None;
        }
        found.push((key, part));
        preimage = rest;
    }
    Some(found)
}

impl Chunk {
    /// Takes the chunk if it is full.
    fn full(&mut self, limit: usize) -> Option<Option<Vec<u8>>> {
        if self.places.is_empty() || self.preimages.len() + self.bodies.len() < limit {
            return Some(None);
        }
        mem::take(self).sealed().map(Some)
    }

    fn put(&mut self, key: &[u8], hash: &[u8], state: &[u8]) -> Option<()> {
        put_preimage(&mut self.preimages, key, hash)?;
        self.bodies.extend(state);
        self.ends.push(u32::try_from(self.bodies.len()).ok()?);
        Some(())
    }

    fn begin_group(&mut self, place: u32) -> Option<()> {
        self.places.push(place);
        self.firsts.push(u32::try_from(self.ends.len()).ok()?);
        self.starts.push(u32::try_from(self.preimages.len()).ok()?);
        Some(())
    }

    fn sealed(self) -> Option<Vec<u8>> {
        let tables = [&self.places, &self.firsts, &self.starts, &self.ends];
        let numbers = tables.iter().map(|table| table.len()).sum::<usize>();
        let sizes = HEAD_BYTES + NUMBER_BYTES * (numbers + 1);
        let mut data = Vec::with_capacity(sizes + self.preimages.len() + self.bodies.len());
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

fn split(placed: &[u8]) -> Option<(u32, &[u8])> {
    let (place, key) = placed.split_at_checked(PLACE_BYTES)?;
    Some((place.iter().fold(0, |number, byte| number << 8 | u32::from(*byte)), key))
}

fn put_preimage(preimages: &mut Vec<u8>, key: &[u8], hash: &[u8]) -> Option<()> {
    preimages.extend(u32::try_from(key.len()).ok()?.to_be_bytes());
    preimages.extend(key);
    preimages.extend(hash);
    Some(())
}

/// Returns the state hash in a stored form, and what follows it: `stored_hash` of reducers/entity.py.
fn stored_hash(state: &[u8]) -> Option<(&[u8], &[u8])> {
    let (_, rest) = integer(state.get(2..)?)?;
    rest.strip_prefix(&HASH_HEAD)?.split_at_checked(DIGEST_BYTES)
}

/// Reads an unsigned MessagePack integer, and returns it and the rest.
fn integer(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (head, rest) = bytes.split_first()?;
    let size = match *head {
        0x00..=0x7f => return Some((u64::from(*head), rest)),
        head @ 0xcc..=0xcf => 1 << (head - 0xcc),
        _ => return None,
    };
    let (number, rest) = rest.split_at_checked(size)?;
    Some((number.iter().fold(0, |found, byte| found << 8 | u64::from(*byte)), rest))
}
