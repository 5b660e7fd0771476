//! The cell of a field, and how each reducer folds an assertion into it (reducers/scalar.py, arithmetic.py,
//! collection.py).

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::BTreeMap;

use crate::cbor;
use crate::exact::Exact;
use crate::layout::{Field, Reducer};
use crate::msgpack;
use crate::node::{from_signed_bytes, signed_bytes};
use crate::order_keys::OrderKeys;
use crate::state::id_of;
use crate::value::Value;

/// An order key.
pub type Q<'a> = &'a [u8];

#[derive(Clone, Debug)]
pub enum Cell<'a> {
    /// The winner, for latest, first, min and max.
    Won { value: Value<'a>, priority: i64, q: Q<'a> },
    /// `numerator`: in Python's stored form.
    Sum { numerator: Cow<'a, [u8]>, shift: i64, count: i64, greatest: Q<'a> },
    Count { count: i64, greatest: Q<'a> },
    /// Elements by their CBOR.
    Union(BTreeMap<Cow<'a, [u8]>, (Value<'a>, Q<'a>)>),
    /// Elements by order key; each with its index in the list that asserted it.
    Append(Vec<(Value<'a>, Q<'a>, i64)>),
    /// A removed key stays, with Null.
    Map(BTreeMap<&'a str, (Value<'a>, i64, Q<'a>)>),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Op {
    Set,
    Add,
    Remove,
    Clear,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Key<'a> {
    None,
    Text(&'a str),
    Place(Q<'a>, i64),
}

/// An observation's change of one field: the observation holds the field now, or ended its value.
#[derive(Debug)]
pub struct Mutation<'a> {
    /// The field's index in the layout.
    pub place: usize,
    pub op: Op,
    pub key: Key<'a>,
    pub old: Option<Value<'a>>,
    pub new: Option<Value<'a>>,
}

/// An assertion of one field.
pub struct Asserted<'o, 'a> {
    pub place: usize,
    pub value: &'o Value<'a>,
    pub priority: i64,
    pub q: Q<'a>,
}

/// Folds an assertion into a cell, and appends the mutations to `out`. None if Python must fold it.
pub fn fold<'a>(
    reducer: Reducer,
    cell: Option<Cell<'a>>,
    said: &Asserted<'_, 'a>,
    out: &mut Vec<Mutation<'a>>,
) -> Option<Cell<'a>> {
    let (place, value, priority, q) = (said.place, said.value, said.priority, said.q);
    let mut changed = |op, key, old, new| out.push(Mutation { place, op, key, old, new });
    match (reducer, cell) {
        (Reducer::Latest | Reducer::First | Reducer::Least | Reducer::Greatest, cell) => {
            let old = match cell {
                None => None,
                Some(Cell::Won { value: held, priority: held_priority, q: holder }) => {
                    if !beats(reducer, said, &held, held_priority, holder)? {
                        return Some(Cell::Won { value: held, priority: held_priority, q: holder });
                    }
                    Some(held)
                }
                Some(_) => return None,
            };
            if old.as_ref() != Some(value) {
                changed(Op::Set, Key::None, old, Some(value.clone()));
            }
            Some(Cell::Won { value: value.clone(), priority, q })
        }
        (Reducer::Sum, cell) => {
            let more = Exact::of(value)?;
            let (before, sum, count, greatest) = match cell {
                None => (None, more, 1, q),
                Some(Cell::Sum { numerator, shift, count, greatest }) => {
                    let held = exact(&numerator, shift)?;
                    (Some(held.rounded()?), held.add(more)?, count.checked_add(1)?, greatest.max(q))
                }
                Some(_) => return None,
            };
            let after = sum.rounded()?;
            if before.as_ref() != Some(&after) {
                changed(Op::Set, Key::None, before, Some(after));
            }
            let numerator = Cow::Owned(signed_bytes(sum.numerator));
            Some(Cell::Sum { numerator, shift: sum.shift.into(), count, greatest })
        }
        (Reducer::Count, cell) => {
            let (before, after, greatest) = match cell {
                None => (None, 1, q),
                Some(Cell::Count { count, greatest }) => (Some(count), count.checked_add(1)?, greatest.max(q)),
                Some(_) => return None,
            };
            changed(Op::Set, Key::None, before.map(integer), Some(integer(after)));
            Some(Cell::Count { count: after, greatest })
        }
        (Reducer::Union, cell) => {
            let mut held = match cell {
                None => BTreeMap::new(),
                Some(Cell::Union(held)) => held,
                Some(_) => return None,
            };
            for element in items(value)? {
                let mut key = Vec::new();
                cbor::value(&mut key, element);
                match held.get_mut(key.as_slice()) {
                    None => {
                        changed(Op::Add, Key::None, None, Some(element.clone()));
                        held.insert(Cow::Owned(key), (element.clone(), q));
                    }
                    Some((_, holder)) if q < *holder => {
                        held.insert(Cow::Owned(key), (element.clone(), q));
                    }
                    Some(_) => {}
                }
            }
            Some(Cell::Union(held))
        }
        (Reducer::Append { limit }, cell) => {
            let mut grown = match cell {
                None => Vec::new(),
                Some(Cell::Append(held)) => held,
                Some(_) => return None,
            };
            let before = grown.len();
            for (index, element) in items(value)?.iter().enumerate() {
                grown.push((element.clone(), q, i64::try_from(index).ok()?));
            }
            let dropped = grown.len().saturating_sub(limit);
            for (element, holder, index) in grown.iter().take(before.min(dropped)) {
                changed(Op::Remove, Key::Place(holder, *index), Some(element.clone()), None);
            }
            for (element, holder, index) in grown.iter().skip(dropped.max(before)) {
                changed(Op::Add, Key::Place(holder, *index), None, Some(element.clone()));
            }
            grown.drain(..dropped);
            Some(Cell::Append(grown))
        }
        (Reducer::Map, cell) => {
            let mut held = match cell {
                None => BTreeMap::new(),
                Some(Cell::Map(held)) => held,
                Some(_) => return None,
            };
            let Value::Map(members) = value else { return None };
            for (key, new) in members {
                let old = match held.get(key) {
                    Some((_, held_priority, holder)) if (priority, q) <= (*held_priority, *holder) => continue,
                    Some((old, _, _)) => old.clone(),
                    None => Value::Null,
                };
                if old != *new {
                    let (is_old, is_new) = (!matches!(old, Value::Null), !matches!(new, Value::Null));
                    let op = if !is_new { Op::Remove } else if is_old { Op::Set } else { Op::Add };
                    let new = is_new.then(|| new.clone());
                    changed(op, Key::Text(key), is_old.then_some(old), new);
                }
                held.insert(key, (new.clone(), priority, q));
            }
            Some(Cell::Map(held))
        }
    }
}

/// Returns whether an assertion wins over a field's winner.
fn beats(reducer: Reducer, said: &Asserted, held: &Value, held_priority: i64, holder: Q) -> Option<bool> {
    let (value, q) = (said.value, said.q);
    let by_priority = said.priority.cmp(&held_priority);
    let wins = match reducer {
        Reducer::First => by_priority.then_with(|| holder.cmp(q)),
        Reducer::Least => held.compare(value)?.then_with(|| holder.cmp(q)),
        Reducer::Greatest => value.compare(held)?.then_with(|| holder.cmp(q)),
        _ => by_priority.then_with(|| q.cmp(holder)),
    };
    Some(wins == Ordering::Greater)
}

fn items<'o, 'a>(value: &'o Value<'a>) -> Option<&'o [Value<'a>]> {
    match value {
        Value::List(items) => Some(items),
        _ => None,
    }
}

fn integer<'a>(number: i64) -> Value<'a> {
    Value::Integer(number.into())
}

fn exact(numerator: &[u8], shift: i64) -> Option<Exact> {
    Some(Exact { numerator: from_signed_bytes(numerator)?, shift: u32::try_from(shift).ok()? })
}

/// Returns the differences between two cells of a field that one observation cleared and may have asserted again.
pub fn difference<'a>(
    place: usize,
    before: Option<&Cell<'a>>,
    after: Option<&Cell<'a>>,
    out: &mut Vec<Mutation<'a>>,
) -> Option<()> {
    let (old, new) = (elements(before)?, elements(after)?);
    let is_scalar = |cell: &Cell| matches!(cell, Cell::Won { .. } | Cell::Sum { .. } | Cell::Count { .. });
    let (gone, come) =
        if before.or(after).is_some_and(is_scalar) { (Op::Clear, Op::Set) } else { (Op::Remove, Op::Add) };
    for (key, value) in &old {
        if !new.iter().any(|(other, _)| other == key) {
            out.push(Mutation { place, op: gone, key: key.shown(), old: Some(value.clone()), new: None });
        }
    }
    for (key, value) in new {
        match old.iter().find(|(other, _)| *other == key) {
            None => out.push(Mutation { place, op: come, key: key.shown(), old: None, new: Some(value) }),
            Some((_, held)) if *held != value => {
                let (old, new) = (Some(held.clone()), Some(value));
                out.push(Mutation { place, op: Op::Set, key: key.shown(), old, new });
            }
            Some(_) => {}
        }
    }
    Some(())
}

/// Identifies an element of a cell. A union's elements are identified by their CBOR, which mutations do not contain.
#[derive(PartialEq)]
enum ElementKey<'a> {
    Shown(Key<'a>),
    Encoded(Vec<u8>),
}

impl<'a> ElementKey<'a> {
    fn shown(&self) -> Key<'a> {
        match self {
            ElementKey::Shown(key) => *key,
            ElementKey::Encoded(_) => Key::None,
        }
    }
}

fn elements<'a>(cell: Option<&Cell<'a>>) -> Option<Vec<(ElementKey<'a>, Value<'a>)>> {
    Some(match cell {
        None => Vec::new(),
        Some(cell @ (Cell::Won { .. } | Cell::Sum { .. } | Cell::Count { .. })) => {
            vec![(ElementKey::Shown(Key::None), cell.value()?)]
        }
        Some(Cell::Union(held)) => {
            held.iter().map(|(key, (value, _))| (ElementKey::Encoded(key.to_vec()), value.clone())).collect()
        }
        Some(Cell::Append(held)) => {
            held.iter().map(|(value, q, index)| (ElementKey::Shown(Key::Place(q, *index)), value.clone())).collect()
        }
        Some(Cell::Map(held)) => held
            .iter()
            .filter(|(_, (value, _, _))| !matches!(value, Value::Null))
            .map(|(key, (value, _, _))| (ElementKey::Shown(Key::Text(key)), value.clone()))
            .collect(),
    })
}

impl<'a> Cell<'a> {
    /// Returns whether the field is in the state.
    pub fn is_present(&self) -> bool {
        match self {
            Cell::Union(held) => !held.is_empty(),
            Cell::Append(held) => !held.is_empty(),
            Cell::Map(held) => held.values().any(|(value, _, _)| !matches!(value, Value::Null)),
            _ => true,
        }
    }

    /// Returns the field's value; None if Python must compute it.
    pub fn value(&self) -> Option<Value<'a>> {
        Some(match self {
            Cell::Won { value, .. } => value.clone(),
            Cell::Sum { numerator, shift, .. } => exact(numerator, *shift)?.rounded()?,
            Cell::Count { count, .. } => integer(*count),
            Cell::Union(held) => Value::List(held.values().map(|(value, _)| value.clone()).collect()),
            Cell::Append(held) => Value::List(held.iter().map(|(value, _, _)| value.clone()).collect()),
            Cell::Map(held) => Value::Map(
                held.iter()
                    .filter(|(_, (value, _, _))| !matches!(value, Value::Null))
                    .map(|(key, (value, _, _))| (*key, value.clone()))
                    .collect(),
            ),
        })
    }

    /// Writes the CBOR of the field's value.
    pub fn hash_value(&self, out: &mut Vec<u8>) -> Option<()> {
        match self {
            Cell::Won { value, .. } => cbor::value(out, value),
            _ => cbor::value(out, &self.value()?),
        }
        Some(())
    }

    /// Writes the CBOR of the field's holders: an id, one id for each element, or a count.
    pub fn hash_holders(&self, out: &mut Vec<u8>) {
        match self {
            Cell::Won { q, .. } => cbor::bytes(out, id_of(q)),
            Cell::Sum { count, .. } | Cell::Count { count, .. } => cbor::integer(out, (*count).into()),
            Cell::Union(held) => {
                cbor::array_head(out, held.len());
                held.values().for_each(|(_, q)| cbor::bytes(out, id_of(q)));
            }
            Cell::Append(held) => {
                cbor::array_head(out, held.len());
                held.iter().for_each(|(_, q, _)| cbor::bytes(out, id_of(q)));
            }
            Cell::Map(held) => {
                let there = held.iter().filter(|(_, (value, _, _))| !matches!(value, Value::Null));
                let mut there: Vec<_> = there.map(|(key, (_, _, q))| (cbor::key_order(key), q)).collect();
                there.sort_unstable_by_key(|(key, _)| *key);
                cbor::map_head(out, there.len());
                for ((_, key), q) in there {
                    cbor::text(out, key);
                    cbor::bytes(out, id_of(q));
                }
            }
        }
    }

    /// Adds the order keys that the cell has.
    pub fn add_order_keys(&self, out: &mut Vec<Q<'a>>) {
        match self {
            Cell::Won { q, .. } | Cell::Sum { greatest: q, .. } | Cell::Count { greatest: q, .. } => out.push(q),
            Cell::Union(held) => out.extend(held.values().map(|(_, q)| *q)),
            Cell::Append(held) => out.extend(held.iter().map(|(_, q, _)| *q)),
            Cell::Map(held) => out.extend(held.values().map(|(_, _, q)| *q)),
        }
    }

    /// Writes the stored form, with the numbers of its order keys.
    pub fn pack(&self, keys: &OrderKeys, out: &mut Vec<u8>) {
        match self {
            Cell::Won { value, priority, q } => {
                msgpack::array(out, 3);
                msgpack::value(out, value);
                msgpack::integer(out, (*priority).into());
                keys.pack_number(q, out);
            }
            Cell::Sum { numerator, shift, count, greatest } => {
                msgpack::array(out, 4);
                msgpack::bytes(out, numerator);
                msgpack::integer(out, (*shift).into());
                msgpack::integer(out, (*count).into());
                keys.pack_number(greatest, out);
            }
            Cell::Count { count, greatest } => {
                msgpack::array(out, 2);
                msgpack::integer(out, (*count).into());
                keys.pack_number(greatest, out);
            }
            Cell::Union(held) => {
                msgpack::map(out, held.len());
                for (key, (value, q)) in held {
                    msgpack::bytes(out, key);
                    msgpack::array(out, 2);
                    msgpack::value(out, value);
                    keys.pack_number(q, out);
                }
            }
            Cell::Append(held) => {
                msgpack::array(out, held.len());
                for (value, q, index) in held {
                    msgpack::array(out, 3);
                    msgpack::value(out, value);
                    keys.pack_number(q, out);
                    msgpack::integer(out, (*index).into());
                }
            }
            Cell::Map(held) => {
                msgpack::map(out, held.len());
                for (key, (value, priority, q)) in held {
                    msgpack::text(out, key);
                    msgpack::array(out, 3);
                    msgpack::value(out, value);
                    msgpack::integer(out, (*priority).into());
                    keys.pack_number(q, out);
                }
            }
        }
    }

    /// Reads a field's cell in its stored form; None if it is not such a cell.
    pub fn read(field: &Field, reader: &mut msgpack::Reader<'a>, keys: &OrderKeys<'a>) -> Option<Self> {
        let folded = field.folded()?;
        let element = |reader: &mut msgpack::Reader<'a>| reader.value().filter(|value| folded.element.holds(value));
        match folded.reducer {
            Reducer::Latest | Reducer::First | Reducer::Least | Reducer::Greatest => {
                (reader.array()? == 3).then_some(())?;
                let value = element(reader).filter(|value| !matches!(value, Value::Null))?;
                let priority = i64::try_from(reader.integer()?).ok()?;
                Some(Cell::Won { value, priority, q: keys.numbered(reader)? })
            }
            Reducer::Sum => {
                (reader.array()? == 4).then_some(())?;
                let numerator = Cow::Borrowed(reader.bytes()?);
                let (shift, count) = (reader.count()?, reader.count()?);
                Some(Cell::Sum { numerator, shift, count, greatest: keys.numbered(reader)? })
            }
            Reducer::Count => {
                (reader.array()? == 2).then_some(())?;
                Some(Cell::Count { count: reader.count()?, greatest: keys.numbered(reader)? })
            }
            Reducer::Union => {
                let mut held = BTreeMap::new();
                for _ in 0..reader.map()? {
                    let key = Cow::Borrowed(reader.bytes()?);
                    (reader.array()? == 2).then_some(())?;
                    let value = element(reader)?;
                    if held.insert(key, (value, keys.numbered(reader)?)).is_some() {
                        return None;
                    }
                }
                Some(Cell::Union(held))
            }
            Reducer::Append { .. } => {
                let mut held = Vec::new();
                for _ in 0..reader.array()? {
                    (reader.array()? == 3).then_some(())?;
                    let value = element(reader)?;
                    held.push((value, keys.numbered(reader)?, reader.count()?));
                }
                Some(Cell::Append(held))
            }
            Reducer::Map => {
                let mut held = BTreeMap::new();
                for _ in 0..reader.map()? {
                    let key = reader.text()?;
                    (reader.array()? == 3).then_some(())?;
                    let value = element(reader)?;
                    let priority = i64::try_from(reader.integer()?).ok()?;
                    if held.insert(key, (value, priority, keys.numbered(reader)?)).is_some() {
                        return None;
                    }
                }
                Some(Cell::Map(held))
            }
        }
    }
}
