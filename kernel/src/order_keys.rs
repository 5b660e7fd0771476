//! The order keys of a stored state (reducers/entity.py): each is stored once, and everything else has its number.

use crate::cell::Q;
use crate::msgpack;
use crate::state::order_key;

/// Distinct order keys, ascending. An empty key has no number.
pub struct OrderKeys<'a>(Vec<Q<'a>>);

impl<'a> OrderKeys<'a> {
    /// Takes keys in any order, some of them more than once.
    pub fn of(mut keys: Vec<Q<'a>>) -> Self {
        keys.retain(|q| !q.is_empty());
        keys.sort_unstable();
        keys.dedup();
        OrderKeys(keys)
    }

    /// Reads the keys of a stored state; None if they are not ascending order keys.
    pub fn read(reader: &mut msgpack::Reader<'a>) -> Option<Self> {
        let mut keys = Vec::new();
        for _ in 0..reader.array()? {
            keys.push(order_key(reader.bytes()?)?);
        }
        keys.windows(2).all(|pair| pair[0] < pair[1]).then_some(OrderKeys(keys))
    }

    pub fn pack(&self, out: &mut Vec<u8>) {
        msgpack::array(out, self.0.len());
        self.0.iter().for_each(|q| msgpack::bytes(out, q));
    }

    /// Reads a number, and returns its key.
    pub fn numbered(&self, reader: &mut msgpack::Reader) -> Option<Q<'a>> {
        self.0.get(usize::try_from(reader.count()?).ok()?).copied()
    }

    /// Writes the number of one of the keys, or nil for an empty key.
    pub fn pack_number(&self, q: Q, out: &mut Vec<u8>) {
        match self.0.binary_search(&q) {
            Ok(number) => msgpack::integer(out, number as i128),
            Err(_) => msgpack::nil(out),
        }
    }
}
