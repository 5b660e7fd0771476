//! New observations: which values of a patch are canonical as they are given (avro/values.py), and an observation's
//! bytes.
//!
//! Only values that are borrowed from Python are recognised as canonical: texts, bytes, numbers and booleans of exactly
//! these types. Values that Python has checked may have any kind, also lists and objects, and are encoded.

use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString};

use crate::avro::{write_long, write_text};
use crate::layout::Layout;
use crate::node::{Kind, Node};
use crate::observation::{self, Observation, Source};
use crate::value::Value;

/// A text's CBOR is longer than its UTF-8 by at most this many bytes.
const HEAD_BYTES_MAX: usize = 9;
/// Integers up to this absolute value are exact as doubles.
const DOUBLE_EXACT: i128 = 1 << 53;
const FLOAT_EXACT: i128 = 1 << 24;
/// Values that are nested deeper are left to Python.
const DEPTH_MAX: usize = 64;

/// Returns the names of the values that Python must check; the others are canonical as given. None if Python must check
/// the patch as a whole: a name is no plain text.
pub fn doubtful<'py>(layout: &Layout, patch: &Bound<'py, PyDict>) -> PyResult<Option<Vec<Bound<'py, PyString>>>> {
    let mut names = Vec::new();
    for (name, given) in patch.iter() {
        let Ok(name) = name.cast_into_exact::<PyString>() else { return Ok(None) };
        let is_canonical = match name.to_str().ok().and_then(|name| layout.places.get(name)) {
            None => false,
            Some(place) => {
                let field = &layout.fields[*place];
                match (&field.patch, plain_value(&given)?) {
                    (Node::Union(kinds), Some(value)) => {
                        kinds.iter().any(|kind| is_canonical_in(kind, &value, field.inline_bytes))
                    }
                    _ => false,
                }
            }
        };
        if !is_canonical {
            names.push(name);
        }
    }
    Ok(Some(names))
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

/// Converts a value that can be borrowed; None for any other.
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

/// A part of a value, in a flat sequence: a list or an object comes before its parts, and does not own them.
enum Part<'py> {
    List(usize),
    Object(usize),
    One(Bound<'py, PyAny>),
}

/// Appends a value's parts; None if it is nested too deeply.
fn take_apart<'py>(given: &Bound<'py, PyAny>, depth: usize, parts: &mut Vec<Part<'py>>) -> Option<()> {
    if depth > DEPTH_MAX {
        return None;
    }
    if let Ok(list) = given.cast_exact::<PyList>() {
        parts.push(Part::List(list.len()));
        for each in list.iter() {
            take_apart(&each, depth + 1, parts)?;
        }
    } else if let Ok(object) = given.cast_exact::<PyDict>() {
        parts.push(Part::Object(object.len()));
        for (key, each) in object.iter() {
            parts.push(Part::One(key));
            take_apart(&each, depth + 1, parts)?;
        }
    } else {
        parts.push(Part::One(given.clone()));
    }
    Some(())
}

/// Builds a value from the next parts; None if Python must check it.
fn put_together<'a>(parts: &mut std::slice::Iter<'a, Part>) -> PyResult<Option<Value<'a>>> {
    Ok(match parts.next() {
        None => None,
        Some(Part::One(given)) if given.is_none() => Some(Value::Null),
        Some(Part::One(given)) => plain_value(given)?,
        Some(Part::List(count)) => {
            let mut items = Vec::with_capacity(*count);
            for _ in 0..*count {
                let Some(item) = put_together(parts)? else { return Ok(None) };
                items.push(item);
            }
            Some(Value::List(items))
        }
        Some(Part::Object(count)) => {
            let mut members = Vec::with_capacity(*count);
            for _ in 0..*count {
                let Some(Value::Text(key)) = put_together(parts)? else { return Ok(None) };
                let Some(member) = put_together(parts)? else { return Ok(None) };
                members.push((key, member));
            }
            Some(Value::Map(members))
        }
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

/// Returns the framed bytes and the id of an assert whose fields Python has checked; None if Python must write it.
pub fn encode(layout: &Layout, given: &GivenObservation) -> PyResult<Option<(Vec<u8>, [u8; 32])>> {
    let (entity, observed_at, kind, priority, source, causes, patch, cleared, retracts, link, subject) = given;
    if &**kind != "assert" || !cleared.is_empty() || !retracts.is_empty() || link.is_some() {
        return Ok(None);
    }
    let Ok(patch) = patch.cast::<PyDict>() else { return Ok(None) };
    let mut parts = Vec::with_capacity(4 * patch.len());
    if take_apart(patch.as_any(), 0, &mut parts).is_none() {
        return Ok(None);
    }
    let Some(Value::Map(given)) = put_together(&mut parts.iter())? else { return Ok(None) };
    let mut patch = Vec::with_capacity(given.len());
    for (name, value) in given {
        let Some(place) = layout.places.get(name) else { return Ok(None) };
        if matches!(value, Value::Null) || !layout.fields[*place].patch.holds(&value) {
            return Ok(None);
        }
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
