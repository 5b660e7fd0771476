//! One version of an entity type: how its observations, states and changes lie, and how its fields fold.

use std::collections::HashMap;

use crate::node::Node;

/// How a field folds. What is not here is folded by Python.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reducer {
    Latest,
    First,
    Least,
    Greatest,
    Sum,
    Count,
    Union,
    Append { limit: usize },
    Map,
}

impl Reducer {
    /// limit: of append.
    pub fn named(name: &str, limit: usize) -> Option<Self> {
        Some(match name {
            "latest" => Reducer::Latest,
            "first" => Reducer::First,
            "min" => Reducer::Least,
            "max" => Reducer::Greatest,
            "sum" => Reducer::Sum,
            "count" => Reducer::Count,
            "union" => Reducer::Union,
            "append" => Reducer::Append { limit },
            "map" => Reducer::Map,
            _ => return None,
        })
    }
}

#[derive(Debug)]
pub struct Field {
    pub name: String,
    /// The CBOR of the name.
    pub key: Vec<u8>,
    /// What a patch has of the field, or null.
    pub patch: Node,
    /// What a mutation has of it, or null: an element of a collection, else its value.
    pub element: Node,
    /// None where Python folds it: an entity that has the field is Python's.
    pub reducer: Option<Reducer>,
    /// How many bytes a value may have before it has to be a Blob.
    pub inline_bytes: usize,
}

/// A field that is folded here.
pub struct Folded<'a> {
    pub element: &'a Node,
    pub reducer: Reducer,
}

impl Field {
    pub fn folded(&self) -> Option<Folded<'_>> {
        Some(Folded { element: &self.element, reducer: self.reducer? })
    }
}

/// How a type version's observations and states lie. `fields` in the order of its definition.
#[derive(Debug)]
pub struct Layout {
    /// What its entities' names begin with: the type and a slash.
    pub prefix: String,
    /// What framed observations begin with.
    pub frame: [u8; FRAME_BYTES],
    pub fields: Vec<Field>,
    pub places: HashMap<String, usize>,
    /// The fields in the order of their names, and of their names' CBOR.
    pub by_name: Vec<usize>,
    pub by_key: Vec<usize>,
}

/// What a fold writes besides: of the type's definition, and of its changes.
#[derive(Debug)]
pub struct Definition {
    pub fingerprint: [u8; 32],
    /// What framed changes begin with.
    pub change_frame: [u8; FRAME_BYTES],
    /// Its offset in `.schemas`.
    pub offset: u64,
}

pub const FRAME_BYTES: usize = 5;

impl Layout {
    pub fn new(type_name: &str, frame: [u8; FRAME_BYTES], fields: Vec<Field>) -> Self {
        let places = fields.iter().enumerate().map(|(place, field)| (field.name.clone(), place)).collect();
        let mut by_name: Vec<usize> = (0..fields.len()).collect();
        let mut by_key = by_name.clone();
        by_name.sort_by(|one, two| fields[*one].name.cmp(&fields[*two].name));
        by_key.sort_by(|one, two| fields[*one].key.cmp(&fields[*two].key));
        Layout { prefix: format!("{type_name}/"), frame, fields, places, by_name, by_key }
    }
}
