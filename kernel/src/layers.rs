//! The layers of an epoch: which groups of chunks count for each place, and the digests of the buckets
//! (streams/snapshots/layers.py).

use std::collections::{BTreeMap, BTreeSet};

use sha2::{Digest, Sha256};

use crate::chunk::{self, Groups, BUCKETS, DIGEST_BYTES};
use crate::place::SLOTS;

/// A place, what its bucket's digest covers, and whether this digest is known.
struct Place {
    number: u32,
    is_hashed: bool,
    covered: Box<[u8]>,
}

/// The places in the order in which they were added.
///
/// groups: the newest and the oldest group of each place that a chunk has; these places are the first ones.
/// indexes: by slot, the index of the place of each bucket, plus one; 0 for one that was not added.
/// digests: the digests of the buckets of each slot that was hashed.
#[derive(Default)]
pub struct Layers {
    places: Vec<Place>,
    groups: Vec<(u64, u64)>,
    indexes: BTreeMap<u32, Box<[u32]>>,
    older: Vec<(u64, u64)>,
    digests: BTreeMap<u32, Vec<u8>>,
    unhashed: usize,
    covered_bytes: usize,
}

impl Layers {
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
        let Some(index) = self.index(number)? else {
            if self.groups.len() != self.places.len() {
                return None; // a place was put
            }
            self.groups.push((group, group));
            return self.begin(number, own);
        };
        let (_, oldest) = self.groups.get_mut(index)?;
        let place = self.places.get_mut(index)?;
        if chunk::has_the_same_entity(own, &place.covered) {
            return Some(());
        }
        let both = chunk::merged_preimages(own, &place.covered)?;
        if *both != *place.covered {
            self.older.push((*oldest, group));
            *oldest = group;
            self.covered_bytes += both.len() - place.covered.len();
            place.covered = both.into();
            self.unhashed += usize::from(place.is_hashed);
            place.is_hashed = false;
        }
        Some(())
    }

    /// Puts entities of a place, given by what its bucket's digest covers of them, over all others. No chunk may be added
    /// afterwards.
    pub fn put(&mut self, number: u32, own: &[u8]) -> Option<()> {
        let Some(index) = self.index(number)? else {
            return self.begin(number, own);
        };
        let place = self.places.get_mut(index)?;
        if chunk::has_the_same_entity(&place.covered, own) {
            place.covered.copy_from_slice(own);
        } else {
            let both = chunk::merged_preimages(&place.covered, own)?;
            self.covered_bytes += both.len() - place.covered.len();
            place.covered = both.into();
        }
        self.unhashed += usize::from(place.is_hashed);
        place.is_hashed = false;
        Some(())
    }

    /// Returns the index of a place, if it was added; None if there is no such place.
    fn index(&self, number: u32) -> Option<Option<usize>> {
        let (slot, bucket) = (number >> 8, (number & 0xFF) as usize);
        if slot >= SLOTS {
            return None;
        }
        let index = self.indexes.get(&slot).and_then(|buckets| buckets[bucket].checked_sub(1));
        Some(index.map(|index| index as usize))
    }

    fn begin(&mut self, number: u32, own: &[u8]) -> Option<()> {
        self.unhashed += 1;
        self.covered_bytes += own.len();
        self.places.push(Place { number, is_hashed: false, covered: own.into() });
        let buckets = self.indexes.entry(number >> 8).or_insert_with(|| [0; BUCKETS].into());
        buckets[(number & 0xFF) as usize] = u32::try_from(self.places.len()).ok()?;
        Some(())
    }

    /// Returns each place of a chunk and its newest group.
    pub fn newest(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        self.places.iter().zip(&self.groups).map(|(place, (newest, _))| (place.number, *newest))
    }

    /// Returns groups, each with the next older one of its place.
    pub fn older(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.older.iter().copied()
    }

    /// Returns the number of places whose digests are not known.
    pub fn unhashed(&self) -> usize {
        self.unhashed
    }

    /// Returns the number of places, and of the bytes that their digests cover.
    pub fn size(&self) -> (usize, usize) {
        (self.places.len(), self.covered_bytes)
    }

    /// Returns the digests of all buckets of each slot in which one changed since the last call.
    pub fn digests(&mut self) -> Vec<(u32, &[u8])> {
        let mut changed = BTreeSet::new();
        for place in self.places.iter_mut().filter(|place| !place.is_hashed) {
            let slot = place.number >> 8;
            let digests = self.digests.entry(slot).or_insert_with(chunk::no_digests);
            chunk::hash_bucket(digests, (place.number & 0xFF) as usize, &place.covered);
            place.is_hashed = true;
            changed.insert(slot);
        }
        self.unhashed = 0;
        self.digests.iter().filter(|(slot, _)| changed.contains(slot)).map(|(slot, each)| (*slot, each.as_slice())).collect()
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
