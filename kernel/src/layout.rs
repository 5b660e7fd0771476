//! One version of an entity type: the layout of its observations, states and changes, and the reducers of its fields.

use std::collections::HashMap;

use crate::node::Node;

/// A field's reducer. Other reducers are left to Python.
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
    /// Returns the reducer with a name; `limit` is append's.
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
    /// The field's type in a patch, or null.
    pub patch: Node,
    /// The type of a mutation's values, or null: an element of a collection, else the field's value.
    pub element: Node,
    /// None if only Python can fold the field: an entity that has the field is left to Python.
    pub reducer: Option<Reducer>,
    /// The maximum size of a value in bytes; a larger one must be a Blob.
    pub inline_bytes: usize,
}

/// A field that the kernel folds.
pub struct Folded<'a> {
    pub element: &'a Node,
    pub reducer: Reducer,
}

impl Field {
    pub fn folded(&self) -> Option<Folded<'_>> {
        Some(Folded { element: &self.element, reducer: self.reducer? })
    }
}

/// The layout of a type version's observations and states. `fields`: in the order of its definition.
#[derive(Debug)]
pub struct Layout {
    /// The prefix of its entities' names: the type and a slash.
    pub prefix: String,
    /// The frame at the start of framed observations.
    pub frame: [u8; FRAME_BYTES],
    pub fields: Vec<Field>,
    pub places: HashMap<String, usize>,
    /// The fields' indexes by name, and by their names' CBOR.
    pub by_name: Vec<usize>,
    pub by_key: Vec<usize>,
}

/// The parts of the type's definition and its changes that a fold also writes.
#[derive(Debug)]
pub struct Definition {
    pub fingerprint: [u8; 32],
    /// The frame at the start of framed changes.
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
