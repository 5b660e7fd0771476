//! The layers of an epoch: which groups of chunks count for each place, and the digests of the buckets
//! (streams/snapshots/layers.py).

use std::collections::BTreeMap;
use std::ops::Range;

use sha2::{Digest, Sha256};

use crate::chunk::{self, Groups, BUCKETS, DIGEST_BYTES};
use crate::place::SLOTS;

/// A place: its newest and its oldest group, and where what its bucket's digest covers is in the buffer.
struct Place {
    number: u32,
    newest: u64,
    oldest: u64,
    covered: Range<usize>,
}

/// The places in the order in which they were added. indexes: the index of each, plus one; 0 for one that was not added.
pub struct Layers {
    places: Vec<Place>,
    indexes: Vec<u32>,
    older: Vec<(u64, u64)>,
    covered: Vec<u8>,
}

impl Layers {
    pub fn new() -> Self {
        let indexes = vec![0; SLOTS as usize * BUCKETS];
        Layers { places: Vec::new(), indexes, older: Vec::new(), covered: Vec::new() }
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
        let start = self.covered.len();
        let index = self.indexes.get_mut(number as usize)?;
        let Some(place) = index.checked_sub(1).and_then(|known| self.places.get_mut(known as usize)) else {
            self.covered.extend(own);
            self.places.push(Place { number, newest: group, oldest: group, covered: start..self.covered.len() });
            *index = u32::try_from(self.places.len()).ok()?;
            return Some(());
        };
        let above = &self.covered[place.covered.clone()];
        if chunk::has_the_same_entity(own, above) {
            return Some(());
        }
        let both = chunk::merged_preimages(own, above)?;
        if both != above {
            self.older.push((place.oldest, group));
            place.oldest = group;
            self.covered.extend(both);
            place.covered = start..self.covered.len();
        }
        Some(())
    }

    /// Returns each place and its newest group.
    pub fn newest(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        self.places.iter().map(|place| (place.number, place.newest))
    }

    /// Returns groups, each with the next older one of its place.
    pub fn older(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.older.iter().copied()
    }

    /// Returns the digests of all buckets of each slot that has a place.
    pub fn digests(&self) -> BTreeMap<u32, Vec<u8>> {
        let mut slots: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
        for place in &self.places {
            let digests = slots.entry(place.number >> 8).or_insert_with(chunk::no_digests);
            chunk::hash_bucket(digests, (place.number & 0xFF) as usize, &self.covered[place.covered.clone()]);
        }
        slots
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
