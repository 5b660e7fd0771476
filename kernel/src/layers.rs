//! The layers of an epoch: which groups of chunks count for each place, and the digests of the buckets
//! (streams/snapshots/layers.py).

use std::collections::{BTreeMap, BTreeSet};

use sha2::{Digest, Sha256};

use crate::chunk::{self, Groups, BUCKETS, DIGEST_BYTES};
use crate::place::SLOTS;

/// A place: its newest and its oldest group, if a chunk has one, what its bucket's digest covers, and whether this digest
/// is known.
struct Place {
    number: u32,
    groups: Option<(u64, u64)>,
    covered: Vec<u8>,
    is_hashed: bool,
}

/// The places in the order in which they were added. indexes: the index of each, plus one; 0 for one that was not added.
/// slots: the digests of the buckets of each slot that was hashed.
pub struct Layers {
    places: Vec<Place>,
    indexes: Vec<u32>,
    older: Vec<(u64, u64)>,
    slots: BTreeMap<u32, Vec<u8>>,
}

impl Layers {
    pub fn new() -> Self {
        let indexes = vec![0; SLOTS as usize * BUCKETS];
        Layers { places: Vec::new(), indexes, older: Vec::new(), slots: BTreeMap::new() }
    }

    /// Adds a chunk of a layer below all that were added before; None if it is damaged. first: the number of its first
    /// group.
    pub fn add(&mut self, data: &[u8], first: u64) -> Option<()> {
        let groups = Groups::of(data)?;
        let mut last = None;
        for at in 0..groups.len() {
            let (number, own) = groups.get(at)?;
            if own.is_empty() || last.is_some_and(|last| last >= number) {
                return None;
            }
            last = Some(number);
            self.add_group(number, own, first.checked_add(u64::try_from(at).ok()?)?)?;
        }
        Some(())
    }

    fn add_group(&mut self, number: u32, own: &[u8], group: u64) -> Option<()> {
        let Some(place) = self.place(number)? else {
            return self.begin(number, own, Some((group, group)));
        };
        let (newest, oldest) = place.groups?;
        if chunk::has_the_same_entity(own, &place.covered) {
            return Some(());
        }
        let both = chunk::merged_preimages(own, &place.covered)?;
        if both != place.covered {
            place.groups = Some((newest, group));
            place.covered = both;
            self.older.push((oldest, group));
        }
        Some(())
    }

    /// Puts entities of a place, given by what its bucket's digest covers of them, over all others. No chunk may be added
    /// afterwards.
    pub fn put(&mut self, number: u32, own: &[u8]) -> Option<()> {
        let Some(place) = self.place(number)? else {
            return self.begin(number, own, None);
        };
        if chunk::has_the_same_entity(&place.covered, own) {
            place.covered.copy_from_slice(own);
        } else {
            place.covered = chunk::merged_preimages(&place.covered, own)?;
        }
        place.is_hashed = false;
        Some(())
    }

    /// Returns a place, if it was added; None if there is no such place.
    fn place(&mut self, number: u32) -> Option<Option<&mut Place>> {
        let index = self.indexes.get(number as usize)?.checked_sub(1);
        Some(index.and_then(|index| self.places.get_mut(index as usize)))
    }

    fn begin(&mut self, number: u32, own: &[u8], groups: Option<(u64, u64)>) -> Option<()> {
        self.places.push(Place { number, groups, covered: own.to_vec(), is_hashed: false });
        *self.indexes.get_mut(number as usize)? = u32::try_from(self.places.len()).ok()?;
        Some(())
    }

    /// Returns each place of a chunk and its newest group.
    pub fn newest(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        self.places.iter().filter_map(|place| place.groups.map(|(newest, _)| (place.number, newest)))
    }

    /// Returns groups, each with the next older one of its place.
    pub fn older(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.older.iter().copied()
    }

    /// Returns the digests of all buckets of each slot in which one changed since the last call.
    pub fn digests(&mut self) -> Vec<(u32, &[u8])> {
        let mut changed = BTreeSet::new();
        for place in self.places.iter_mut().filter(|place| !place.is_hashed) {
            let slot = place.number >> 8;
            let digests = self.slots.entry(slot).or_insert_with(chunk::no_digests);
            chunk::hash_bucket(digests, (place.number & 0xFF) as usize, &place.covered);
            place.is_hashed = true;
            changed.insert(slot);
        }
        self.slots.iter().filter(|(slot, _)| changed.contains(slot)).map(|(slot, each)| (*slot, each.as_slice())).collect()
    }
}

/// Returns the digest of each span, given by its records.
pub fn span_digests(spans: &[Vec<impl AsRef<[u8]>>]) -> Vec<[u8; DIGEST_BYTES]> {
    let digest = |span: &Vec<_>| {
        let mut digest = Sha256::new();
        span.iter().for_each(|record: &_| digest.update(AsRef::<[u8]>::as_ref(record)));
        digest.finalize().into()
    };
    spans.iter().map(digest).collect()
}
