//! Observations on their way in: which patches are canonical as they are (avro/values.py), and their bytes.
//!
//! Only values that need no owner are taken: texts, bytes, numbers and booleans of exactly these types. Lists, objects and
//! whatever else an author may give are Python's.

use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyString};

use crate::avro::{write_long, write_text};
use crate::layout::Layout;
use crate::node::{Kind, Node};
use crate::observation::{self, Observation, Source};
use crate::value::Value;

/// A text's CBOR has at most so many bytes more than its UTF-8.
const HEAD_BYTES_MAX: usize = 9;
/// Integers up to these are doubles, and floats, without loss.
const DOUBLE_EXACT: i128 = 1 << 53;
const FLOAT_EXACT: i128 = 1 << 24;

/// Whether every value of a patch is canonical as it is given, and of a field's own kind. False where Python has to look.
pub fn is_canonical(layout: &Layout, patch: &Bound<PyDict>) -> PyResult<bool> {
    for (name, given) in patch.iter() {
        let Ok(name) = name.cast_exact::<PyString>() else { return Ok(false) };
        let Ok(name) = name.to_str() else { return Ok(false) };
        let Some(place) = layout.places.get(name) else { return Ok(false) };
        let field = &layout.fields[*place];
        let Some(value) = plain_value(&given)? else { return Ok(false) };
        let Node::Union(kinds) = &field.patch else { return Ok(false) };
        if !kinds.iter().any(|kind| is_canonical_in(kind, &value, field.inline_bytes)) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn is_canonical_in(kind: &Kind, value: &Value, inline_bytes: usize) -> bool {
    match (kind, value) {
        (Kind::Text, Value::Text(text)) => text.len() + HEAD_BYTES_MAX <= inline_bytes,
        (Kind::Enum { symbols }, Value::Text(text)) => symbols.iter().any(|symbol| symbol == text),
        (Kind::Boolean, Value::Boolean(_)) => true,
        (Kind::Integer { low, end }, Value::Integer(number)) => (low..end).contains(&number),
        (Kind::Double, Value::Integer(number)) => number.abs() <= DOUBLE_EXACT,
        (Kind::Float, Value::Integer(number)) => number.abs() <= FLOAT_EXACT,
        (Kind::Double, Value::Float(number)) => Value::number(*number).as_ref() == Some(value),
        (Kind::Float, Value::Float(number)) => {
            f64::from(*number as f32) == *number && Value::number(*number).as_ref() == Some(value)
        }
        _ => false,
    }
}

/// A value that needs no owner; None for any other.
fn plain_value<'a>(given: &'a Bound<PyAny>) -> PyResult<Option<Value<'a>>> {
    Ok(if let Ok(text) = given.cast_exact::<PyString>() {
        text.to_str().ok().map(Value::Text)
    } else if given.is_exact_instance_of::<PyBool>() {
        Some(Value::Boolean(given.extract()?))
    } else if given.is_exact_instance_of::<PyInt>() {
        given.extract::<i64>().ok().map(|number| Value::Integer(number.into()))
    } else if given.is_exact_instance_of::<PyFloat>() {
        Some(Value::Float(given.extract()?))
    } else {
        given.cast_exact::<PyBytes>().ok().map(|bytes| Value::Bytes(bytes.as_bytes()))
    })
}

type GivenSource = (PyBackedStr, PyBackedStr, PyBackedStr, PyBackedStr, i64);
/// An observation as Python's tuple: its parts in their order.
pub type GivenObservation<'py> = (
    PyBackedStr,
    i64,
    PyBackedStr,
    i32,
    GivenSource,
    Vec<PyBackedBytes>,
    Bound<'py, PyAny>,
    Vec<PyBackedStr>,
    Vec<PyBackedBytes>,
    Option<Bound<'py, PyAny>>,
    PyBackedStr,
);

/// The framed bytes of an assert of fields that Python has checked, and its id; None where Python writes it.
pub fn encode(layout: &Layout, given: &GivenObservation) -> PyResult<Option<(Vec<u8>, [u8; 32])>> {
    let (entity, observed_at, kind, priority, source, causes, patch, cleared, retracts, link, subject) = given;
    if &**kind != "assert" || !cleared.is_empty() || !retracts.is_empty() || link.is_some() {
        return Ok(None);
    }
    let Ok(patch) = patch.cast::<PyDict>() else { return Ok(None) };
    let given: Vec<_> = patch.iter().collect();
    let mut patch = Vec::with_capacity(given.len());
    for (name, value) in &given {
        let Some(place) = name.cast::<PyString>()?.to_str().ok().and_then(|name| layout.places.get(name)) else {
            return Ok(None);
        };
        let Some(value) = plain_value(value)?.filter(|value| layout.fields[*place].patch.holds(value)) else {
            return Ok(None);
        };
        patch.push((*place, value));
    }
    patch.sort_unstable_by_key(|(place, _)| *place);
    let (agent, run, step, tool, seq) = source;
    let observation = Observation {
        entity,
        kind: observation::Kind::Assert,
        observed_at: *observed_at,
        priority: *priority,
        source: Source { agent, run, step, tool, seq: *seq },
        causes: causes.iter().map(|cause| &**cause).collect(),
        patch,
        cleared: Vec::new(),
        retracts: Vec::new(),
        link: None,
        subject,
    };
    let mut out = Vec::with_capacity(256);
    Ok(write(layout, &observation, &mut out).map(|()| (out, observation.id(layout))))
}

fn write(layout: &Layout, observation: &Observation, out: &mut Vec<u8>) -> Option<()> {
    let source = &observation.source;
    out.extend_from_slice(&layout.frame);
    write_text(out, observation.entity);
    out.push(0); // assert
    write_long(out, observation.observed_at);
    write_long(out, observation.priority.into());
    for name in [source.agent, source.run, source.step, source.tool] {
        write_text(out, name);
    }
    write_long(out, source.seq);
    if !observation.causes.is_empty() {
        write_long(out, i64::try_from(observation.causes.len()).ok()?);
        observation.causes.iter().for_each(|cause| out.extend_from_slice(cause));
    }
    out.push(0);
    let mut patch = observation.patch.iter().peekable();
    for (place, field) in layout.fields.iter().enumerate() {
        let value = patch.next_if(|(given, _)| *given == place).map_or(&Value::Null, |(_, value)| value);
        field.patch.write(out, value)?;
    }
    out.extend_from_slice(&[0, 0, 0]); // nothing cleared, nothing retracted, no link
    write_text(out, observation.subject);
    Some(())
}
