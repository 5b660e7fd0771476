//! One version of an entity type: how its observations, states and changes lie, and how its fields fold.

use std::collections::HashMap;

use crate::value::Kind;

/// How a field folds. What is not here is folded by Python.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reducer {
    Latest,
    First,
    Least,
    Greatest,
}

impl Reducer {
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "latest" => Reducer::Latest,
            "first" => Reducer::First,
            "min" => Reducer::Least,
            "max" => Reducer::Greatest,
            _ => return None,
        })
    }
}

/// The values that the kernel reads in a field: those of its own type, and no Blob or Sealed that may stand there too.
#[derive(Debug)]
pub struct Branch {
    pub kind: Kind,
    /// The byte that names the branch, in a patch and in a mutation.
    pub byte: u8,
}

#[derive(Debug)]
pub struct Field {
    pub name: String,
    /// The CBOR of the name.
    pub key: Vec<u8>,
    /// None where Python reads it: an observation that has the field is Python's.
    pub branch: Option<Branch>,
    /// None where Python folds it: an entity that has the field is Python's.
    pub reducer: Option<Reducer>,
}

impl Field {
    /// The branch and the reducer of a field that is folded here.
    pub fn folded(&self) -> Option<(&Branch, Reducer)> {
        self.branch.as_ref().zip(self.reducer)
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
