//! Layouts as passed from Python (avro/kernel.py): nested tuples, each starting with the name of a kind.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::cbor;
use crate::layout::{Field, Layout, Reducer, FRAME_BYTES};
use crate::node::{Kind, Member, Node};

/// A field: its first name, its reducer, the limit of append, the maximum size of a value, and the nodes of its values
/// in patches and in mutations.
pub type GivenField<'py> = (String, String, usize, usize, Bound<'py, PyTuple>, Bound<'py, PyTuple>);

pub fn layout_of(type_name: &str, frame: [u8; FRAME_BYTES], fields: Vec<GivenField>) -> PyResult<Layout> {
    let fields = fields.into_iter().map(field).collect::<PyResult<Vec<Field>>>()?;
    Ok(Layout::new(type_name, frame, fields))
}

fn field((name, reducer, limit, inline_bytes, patch, element): GivenField) -> PyResult<Field> {
    let mut key = Vec::new();
    cbor::text(&mut key, &name);
    let reducer = Reducer::named(&reducer, limit);
    Ok(Field { name, key, patch: node(&patch)?, element: node(&element)?, reducer, inline_bytes })
}

fn node(given: &Bound<PyTuple>) -> PyResult<Node> {
    let name: String = given.get_item(0)?.extract()?;
    if name != "union" {
        return Ok(Node::One(kind(&name, given)?));
    }
    let choices: Vec<Bound<PyTuple>> = given.get_item(1)?.extract()?;
    let named = |choice: &Bound<PyTuple>| kind(&choice.get_item(0)?.extract::<String>()?, choice);
    Ok(Node::Union(choices.iter().map(named).collect::<PyResult<Vec<Kind>>>()?))
}

fn inner(given: &Bound<PyTuple>) -> PyResult<Box<Node>> {
    Ok(Box::new(node(&given.get_item(1)?.extract()?)?))
}

fn kind(name: &str, given: &Bound<PyTuple>) -> PyResult<Kind> {
    Ok(match name {
        "null" => Kind::Null,
        "text" => Kind::Text,
        "checked text" => Kind::CheckedText,
        "json" => Kind::Json,
        "bytes" => Kind::Bytes,
        "fixed" => Kind::Fixed { size: given.get_item(1)?.extract()? },
        "integer" => Kind::Integer { low: given.get_item(1)?.extract()?, end: given.get_item(2)?.extract()? },
        "boolean" => Kind::Boolean,
        "enum" => Kind::Enum { symbols: given.get_item(1)?.extract()? },
        "float" => Kind::Float,
        "double" => Kind::Double,
        "decimal" => Kind::Decimal { precision: given.get_item(1)?.extract()?, scale: given.get_item(2)?.extract()? },
        "array" => Kind::Array(inner(given)?),
        "map" => Kind::Map(inner(given)?),
        "record" => {
            let members: Vec<(String, Bound<PyTuple>)> = given.get_item(1)?.extract()?;
            let member = |(name, given): (String, Bound<PyTuple>)| Ok(Member { name, node: node(&given)? });
            Kind::Record(members.into_iter().map(member).collect::<PyResult<Vec<Member>>>()?)
        }
        "blob" => Kind::Blob,
        "sealed" => Kind::Sealed,
        _ => return Err(PyValueError::new_err(format!("the kernel knows no kind {name}"))),
    })
}
