//! Links of an entity, each folded under its own key (reducers/links.py).

use std::collections::BTreeMap;

use crate::avro::{write_long, write_text};
use crate::cbor;
use crate::cell::{Op, Q};
use crate::msgpack;
use crate::observation::Link;
use crate::order_keys::OrderKeys;
use crate::state::id_of;

/// Microseconds since 1970; None if not given.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Validity {
    pub from: Option<i64>,
    pub to: Option<i64>,
}

/// The greatest (priority, q) of a relation to a target. An unlink stays, as not linked.
#[derive(Clone, Copy, Debug)]
pub struct LinkCell<'a> {
    is_linked: bool,
    validity: Validity,
    priority: i64,
    q: Q<'a>,
}

/// Cells by relation and target.
pub type Links<'a> = BTreeMap<(&'a str, &'a str), LinkCell<'a>>;

/// An observation's change of one link.
pub struct LinkMutation<'a> {
    op: Op,
    key: (&'a str, &'a str),
    old: Option<Validity>,
    new: Option<Validity>,
}

/// Folds a link or unlink; returns the mutation, if it changed anything.
pub fn fold<'a>(
    links: &mut Links<'a>,
    link: &Link<'a>,
    is_linked: bool,
    priority: i64,
    q: Q<'a>,
) -> Option<LinkMutation<'a>> {
    let key = (link.relation, link.target);
    let held = links.get(&key).copied();
    if held.is_some_and(|held| (priority, q) <= (held.priority, held.q)) {
        return None;
    }
    let validity = if is_linked { link.validity } else { Validity { from: None, to: None } };
    links.insert(key, LinkCell { is_linked, validity, priority, q });
    let old = held.filter(|held| held.is_linked).map(|held| held.validity);
    let new = is_linked.then_some(validity);
    let op = match (old, new) {
        (None, Some(_)) => Op::Add,
        (Some(old), Some(new)) if old != new => Op::Set,
        (Some(_), None) => Op::Remove,
        _ => return None,
    };
    Some(LinkMutation { op, key, old, new })
}

/// Reads the links of a stored state.
pub fn read<'a>(reader: &mut msgpack::Reader<'a>, keys: &OrderKeys<'a>) -> Option<Links<'a>> {
    let mut links = Links::new();
    for _ in 0..reader.array()? {
        (reader.array()? == 7).then_some(())?;
        let key = (reader.text()?, reader.text()?);
        let is_linked = reader.boolean()?;
        let validity = Validity { from: time(reader)?, to: time(reader)? };
        let priority = i64::try_from(reader.integer()?).ok()?;
        let cell = LinkCell { is_linked, validity, priority, q: keys.numbered(reader)? };
        if links.insert(key, cell).is_some() {
            return None;
        }
    }
    Some(links)
}

fn time(reader: &mut msgpack::Reader) -> Option<Option<i64>> {
    if reader.is_nil() {
        return Some(None);
    }
    Some(Some(i64::try_from(reader.integer()?).ok()?))
}

/// Returns the order keys of their winners.
pub fn order_keys<'a, 'l>(links: &'l Links<'a>) -> impl Iterator<Item = Q<'a>> + 'l {
    links.values().map(|cell| cell.q)
}

pub fn pack(links: &Links, keys: &OrderKeys, out: &mut Vec<u8>) {
    msgpack::array(out, links.len());
    for ((relation, target), cell) in links {
        msgpack::array(out, 7);
        msgpack::text(out, relation);
        msgpack::text(out, target);
        msgpack::boolean(out, cell.is_linked);
        for time in [cell.validity.from, cell.validity.to] {
            match time {
                Some(time) => msgpack::integer(out, time.into()),
                None => msgpack::nil(out),
            }
        }
        msgpack::integer(out, cell.priority.into());
        keys.pack_number(cell.q, out);
    }
}

/// Writes the links' part of the state hash: the live ones, in the order of the CBOR of relation and target.
pub fn hash(links: &Links, out: &mut Vec<u8>) {
    let mut live: Vec<_> = links.iter().filter(|(_, cell)| cell.is_linked).collect();
    live.sort_unstable_by_key(|((relation, target), _)| (cbor::key_order(relation), cbor::key_order(target)));
    cbor::array_head(out, live.len());
    for ((relation, target), cell) in live {
        let Validity { from, to } = cell.validity;
        cbor::map_head(out, 3 + usize::from(from.is_some()) + usize::from(to.is_some()));
        cbor::text(out, "by");
        cbor::bytes(out, id_of(cell.q));
        cbor::text(out, "target");
        cbor::text(out, target);
        cbor::text(out, "relation");
        cbor::text(out, relation);
        hash_validity(cell.validity, out);
    }
}

/// Writes validity's members of a map, which come last.
pub fn hash_validity(validity: Validity, out: &mut Vec<u8>) {
    for (name, time) in [("valid_to", validity.to), ("valid_from", validity.from)] {
        if let Some(time) = time {
            cbor::text(out, name);
            cbor::integer(out, time.into());
        }
    }
}

impl LinkMutation<'_> {
    /// Writes its bytes in a change.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.push(self.op.byte());
        write_text(out, self.key.0);
        write_text(out, self.key.1);
        for side in [self.old, self.new] {
            match side {
                None => out.push(0),
                Some(validity) => {
                    out.push(2);
                    for time in [validity.from, validity.to] {
                        match time {
                            None => out.push(0),
                            Some(time) => {
                                out.push(2);
                                write_long(out, time);
                            }
                        }
                    }
                }
            }
        }
        out.push(0); // the step's own observation
    }
}
