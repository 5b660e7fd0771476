//! Observations of one type that has every kind of value and every reducer, made of drawn numbers, and damage to bytes.

use crate::avro::{write_bytes, write_long, write_text};
use crate::cbor;
use crate::layout::{Field, Layout, Reducer, FRAME_BYTES};
use crate::node::{Kind, Member, Node};

pub const FRAME: [u8; FRAME_BYTES] = [0, 0, 0, 0, 7];
pub const ENTITY: &str = "thing/a";
const TEXTS: [&str; 6] = ["", "a", "b", "é", "a longer text than the others", "\u{1F600}"];
const LONGS: [i64; 9] = [0, 1, -1, 63, 64, i32::MAX as i64, 1 << 53, i64::MAX, i64::MIN];
const DOUBLES: [f64; 8] = [0.0, 1.0, -1.5, 0.1, 1e300, 5e-324, f64::INFINITY, f64::NAN];

/// Numbers that a test case has drawn. Further ones are 0, so a shorter case is a simpler one.
pub struct Choices<'a> {
    given: &'a [u16],
}

impl<'a> Choices<'a> {
    pub fn new(given: &'a [u16]) -> Self {
        Choices { given }
    }

    /// Returns a number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        let Some((first, rest)) = self.given.split_first() else {
            return 0;
        };
        self.given = rest;
        usize::from(*first) % end
    }

    pub fn of<T: Copy>(&mut self, each: &[T]) -> T {
        each[self.below(each.len())]
    }
}

/// Returns the layout of the type.
pub fn layout() -> Layout {
    let long = || Kind::Integer { low: i64::MIN.into(), end: 1 << 63 };
    let record = || {
        let name = Member { name: "name".into(), node: Node::One(Kind::Text) };
        let score = Member { name: "score".into(), node: Node::Union(vec![Kind::Null, Kind::Double]) };
        Kind::Record(vec![name, score])
    };
    let list = || Kind::Array(Box::new(Node::One(Kind::Text)));
    let symbols = || vec!["one".into(), "two".into()];
    let fields = vec![
        field("text", Reducer::Latest, Kind::Text, Kind::Text),
        field("bytes", Reducer::First, Kind::Bytes, Kind::Bytes),
        field("fixed", Reducer::Latest, Kind::Fixed { size: 4 }, Kind::Fixed { size: 4 }),
        field("least", Reducer::Least, long(), long()),
        field("greatest", Reducer::Greatest, Kind::Double, Kind::Double),
        field("flag", Reducer::Latest, Kind::Boolean, Kind::Boolean),
        field("enum", Reducer::First, Kind::Enum { symbols: symbols() }, Kind::Enum { symbols: symbols() }),
        field("float", Reducer::Greatest, Kind::Float, Kind::Float),
        field("price", Reducer::Latest, Kind::Decimal { precision: 9, scale: 2 }, Kind::Decimal { precision: 9, scale: 2 }),
        field("sum", Reducer::Sum, long(), long()),
        field("real", Reducer::Sum, Kind::Double, Kind::Double),
        field("count", Reducer::Count, Kind::Text, long()),
        field("tags", Reducer::Union, list(), Kind::Text),
        field("notes", Reducer::Append { limit: 3 }, list(), Kind::Text),
        field("by_key", Reducer::Map, Kind::Map(Box::new(Node::One(long()))), long()),
        field("record", Reducer::Latest, record(), record()),
        field("blob", Reducer::Latest, Kind::Blob, Kind::Blob),
        field("sealed", Reducer::Latest, Kind::Sealed, Kind::Sealed),
    ];
    Layout::new("thing", FRAME, fields)
}

fn field(name: &str, reducer: Reducer, patch: Kind, element: Kind) -> Field {
    let mut key = Vec::new();
    cbor::text(&mut key, name);
    let (patch, element) = (Node::Union(vec![Kind::Null, patch]), Node::Union(vec![Kind::Null, element]));
    Field { name: name.into(), key, patch, element, reducer: Some(reducer), inline_bytes: 32 << 10 }
}

/// Returns the framed bytes of the number-th observation of an entity: valid ones, most of the time.
pub fn observation(layout: &Layout, number: usize, choices: &mut Choices) -> Vec<u8> {
    let mut out = FRAME.to_vec();
    write_text(&mut out, ENTITY);
    let kind = choices.of(&[0, 0, 0, 0, 0, 1, 2]);
    write_long(&mut out, kind);
    let late = choices.of(&[0, 0, 0, 0, 3_500, 20_000]);
    write_long(&mut out, number as i64 * 1_000 - late);
    write_long(&mut out, choices.of(&[0, 0, 1, -1]));
    write_text(&mut out, choices.of(&["agent", "other"]));
    write_text(&mut out, choices.of(&["", "run"]));
    write_text(&mut out, "");
    write_text(&mut out, choices.of(&["", "tool"]));
    write_long(&mut out, number as i64);
    ids(&mut out, choices.of(&[0, 0, 1, 2]), 1);
    let (asserted, cleared, retracted) = if kind == 0 { (choices.below(4), choices.of(&[0, 0, 0, 1]), 0) } else { (0, 0, 0) };
    let chosen: Vec<usize> = (0..asserted).map(|_| choices.below(layout.fields.len())).collect();
    for (place, field) in layout.fields.iter().enumerate() {
        if chosen.contains(&place) {
            node(&mut out, &field.patch, choices);
        } else {
            write_long(&mut out, 0);
        }
    }
    block(&mut out, cleared, |out| write_text(out, &layout.fields[number % layout.fields.len()].name));
    ids(&mut out, retracted + choices.of(&[0, 0, 0, 0, 0, 0, 0, 1]), 9);
    if kind == 0 {
        write_long(&mut out, 0);
    } else {
        write_long(&mut out, 1);
        write_text(&mut out, "about");
        write_text(&mut out, choices.of(&["thing/b", "thing/c"]));
        for _ in 0..2 {
            write_long(&mut out, 0);
        }
    }
    write_text(&mut out, choices.of(&["", "subject"]));
    out
}

fn block(out: &mut Vec<u8>, count: usize, mut item: impl FnMut(&mut Vec<u8>)) {
    if count > 0 {
        write_long(out, count as i64);
        for _ in 0..count {
            item(out);
        }
    }
    write_long(out, 0);
}

fn ids(out: &mut Vec<u8>, count: usize, first: u8) {
    let mut number = first;
    block(out, count, |out| {
        out.extend([number; 32]);
        number += 1;
    });
}

fn node(out: &mut Vec<u8>, node: &Node, choices: &mut Choices) {
    match node {
        Node::One(kind) => value(out, kind, choices),
        Node::Union(kinds) => {
            let branch = kinds.len() - 1;
            write_long(out, branch as i64);
            value(out, &kinds[branch], choices);
        }
    }
}

fn value(out: &mut Vec<u8>, kind: &Kind, choices: &mut Choices) {
    match kind {
        Kind::Null => {}
        Kind::Text | Kind::CheckedText | Kind::Json => write_text(out, choices.of(&TEXTS)),
        Kind::Bytes => write_bytes(out, choices.of(&TEXTS).as_bytes()),
        Kind::Fixed { size } => out.extend(vec![choices.below(256) as u8; *size]),
        Kind::Integer { .. } => write_long(out, choices.of(&LONGS)),
        Kind::Boolean => out.push(choices.below(2) as u8),
        Kind::Enum { symbols } => write_long(out, choices.below(symbols.len()) as i64),
        Kind::Float => out.extend((choices.of(&DOUBLES) as f32).to_le_bytes()),
        Kind::Double => out.extend(choices.of(&DOUBLES).to_le_bytes()),
        Kind::Decimal { .. } => write_bytes(out, &[choices.below(256) as u8]),
        Kind::Array(inner) => {
            let count = choices.below(4);
            block(out, count, |out| node(out, inner, choices));
        }
        Kind::Map(inner) => {
            let count = choices.below(3);
            let mut keys = ["x", "y", "z"].iter();
            block(out, count, |out| {
                write_text(out, keys.next().unwrap_or(&"w"));
                node(out, inner, choices);
            });
        }
        Kind::Record(members) => members.iter().for_each(|member| node(out, &member.node, choices)),
        Kind::Blob => {
            out.extend([choices.below(256) as u8; 32]);
            write_long(out, choices.of(&LONGS));
            write_text(out, "text/plain");
        }
        Kind::Sealed => {
            write_text(out, "key");
            write_bytes(out, b"ciphertext");
        }
    }
}

/// Changes some bytes, or takes some out, puts some in, or cuts the end off.
pub fn damage(bytes: &mut Vec<u8>, start: usize, choices: &mut Choices) {
    for _ in 0..1 + choices.below(3) {
        if bytes.len() <= start {
            return;
        }
        let at = start + choices.below(bytes.len() - start);
        let byte = choices.of(&[0, 1, 2, 0x7f, 0x80, 0xc0, 0xc4, 0xcf, 0xdf, 0xff]);
        match choices.below(5) {
            0 => bytes[at] = byte,
            1 => bytes[at] = bytes[at].wrapping_add(1),
            2 => bytes.insert(at, byte),
            3 => {
                bytes.remove(at);
            }
            _ => bytes.truncate(at),
        }
    }
}
