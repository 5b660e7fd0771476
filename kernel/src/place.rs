//! An entity's partition and storage key: streams/partitioner.py.

use sha2::{Digest, Sha256};

pub const SLOTS: u32 = 1024;
const MIX: u32 = 0x5BD1_E995;
const SEED: u32 = 0x9747_B28C;

/// Kafka's murmur2 of a key.
fn murmur2(key: &[u8]) -> u32 {
    let mut state = SEED ^ key.len() as u32;
    let (words, rest) = key.as_chunks::<4>();
    for word in words {
        let mixed = u32::from_le_bytes(*word).wrapping_mul(MIX);
        state = state.wrapping_mul(MIX) ^ (mixed ^ (mixed >> 24)).wrapping_mul(MIX);
    }
    if !rest.is_empty() {
        let mut word = [0; 4];
        word[..rest.len()].copy_from_slice(rest);
        state = (state ^ u32::from_le_bytes(word)).wrapping_mul(MIX);
    }
    state = (state ^ (state >> 13)).wrapping_mul(MIX);
    state ^ (state >> 15)
}

fn slot(key: &[u8]) -> u32 {
    (murmur2(key) & 0x7FFF_FFFF) % SLOTS
}

/// Returns the partition of an entity in a log with this number of partitions.
pub fn partition(entity: &str, partitions: u32) -> Option<u32> {
    slot(entity.as_bytes()).checked_rem(partitions)
}

/// Returns the key of an entity's records, prefixed with its slot and bucket, by which it sorts first.
pub fn placed(key: &[u8]) -> Vec<u8> {
    let [.., high, low] = slot(key).to_be_bytes();
    let bucket = Sha256::digest(key)[0];
    [[high, low, bucket].as_slice(), key].concat()
}
