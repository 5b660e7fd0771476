//! New observations: which values of a patch are canonical as they are given (avro/values.py), and an observation's
//! bytes.
//!
//! Only values that are borrowed from Python are recognised as canonical: texts, numbers, booleans, lists and objects of
//! exactly Python's built-in types. Values that Python has checked may have any kind, and are encoded.

use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};

use crate::avro::{write_long, write_text};
use crate::cbor;
use crate::layout::{Field, Layout};
use crate::node::{Kind, Member, Node};
use crate::links::Validity;
use crate::observation::{self, Link, Observation, Source};
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
        let field = name.to_str().ok().and_then(|name| layout.places.get(name)).map(|place| &layout.fields[*place]);
        let mut parts = Vec::new();
        let is_canonical = match field {
            Some(field) if take_apart(&given, 0, &mut parts).is_some() => {
                put_together(&mut parts.iter())?.is_some_and(|value| is_canonical(field, &value))
            }
            _ => false,
        };
        if !is_canonical {
            names.push(name);
        }
    }
    Ok(Some(names))
}

/// Returns whether a value is canonical as it is given, and not too large for a record.
fn is_canonical(field: &Field, value: &Value) -> bool {
    if let Value::List(_) | Value::Map(_) = value {
        let mut out = Vec::new();
        cbor::value(&mut out, value);
        return out.len() <= field.inline_bytes && is_canonical_part(&field.patch, value);
    }
    match &field.patch {
        Node::Union(kinds) => kinds.iter().any(|kind| is_canonical_in(kind, value, field.inline_bytes)),
        Node::One(_) => false,
    }
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

/// Returns whether a value within a list or an object is canonical, whatever its size.
fn is_canonical_part(node: &Node, value: &Value) -> bool {
    let is_own = |kind: &Kind| match (kind, value) {
        (Kind::Null, Value::Null) => true,
        (Kind::Array(node), Value::List(items)) => items.iter().all(|item| is_canonical_part(node, item)),
        (Kind::Map(node), Value::Map(members)) => members.iter().all(|(_, member)| is_canonical_part(node, member)),
        (Kind::Record(fields), Value::Map(members)) => is_canonical_record(fields, members),
        (Kind::Array(_) | Kind::Map(_) | Kind::Record(_), _) => false,
        _ => is_canonical_in(kind, value, usize::MAX),
    };
    match node {
        Node::One(kind) => is_own(kind),
        Node::Union(kinds) => kinds.iter().any(is_own),
    }
}

/// Returns whether the members are fields in their order, by their first names, without nulls, and no other field is
/// required.
fn is_canonical_record(fields: &[Member], members: &[(&str, Value)]) -> bool {
    let mut left = members.iter().peekable();
    let are_right = fields.iter().all(|field| match left.next_if(|(name, _)| *name == field.name) {
        None => field.node.allows_null(),
        Some((_, Value::Null)) => false,
        Some((_, value)) => is_canonical_part(&field.node, value),
    });
    are_right && left.next().is_none()
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

/// relation, target, valid from and valid to.
type GivenLink = (PyBackedStr, PyBackedStr, Option<i64>, Option<i64>);

/// Returns the parts of Python's `Link`; None if one has an unusual form.
fn link_of(given: &Bound<PyAny>) -> Option<GivenLink> {
    let part = |name: &str| given.getattr(name).ok();
    let time = |name: &str| match part(name)? {
        time if time.is_none() => Some(None),
        time => exact_integer(&time).map(Some),
    };
    Some((
        part("relation")?.extract().ok()?,
        part("target")?.extract().ok()?,
        time("valid_from")?,
        time("valid_to")?,
    ))
}

fn linked((relation, target, from, to): &GivenLink) -> Link<'_> {
    Link { relation, target, validity: Validity { from: *from, to: *to } }
}

/// Returns the framed bytes and the id of an assert or a link that Python has checked; None if Python must write it.
pub fn encode(layout: &Layout, given: &GivenObservation) -> PyResult<Option<(Vec<u8>, [u8; 32])>> {
    let (entity, observed_at, kind, priority, source, causes, patch, cleared, retracts, link, subject) = given;
    let Some(kind) = kind_of(kind) else { return Ok(None) };
    let given_link = link.as_ref().and_then(link_of);
    if !cleared.is_empty() || !retracts.is_empty() || given_link.is_some() == (kind == observation::Kind::Assert) {
        return Ok(None);
    }
    let link = given_link.as_ref().map(linked);
    let mut parts = Vec::new();
    let Some(patch) = patch_of(layout, patch, &mut parts)? else { return Ok(None) };
    let (agent, run, step, tool, seq) = source;
    let observation = Observation {
        entity,
        kind,
        observed_at: *observed_at,
        priority: *priority,
        source: Source { agent, run, step, tool, seq: *seq },
        causes: causes.iter().map(|cause| &**cause).collect(),
        patch,
        cleared: Vec::new(),
        retracts: Vec::new(),
        link,
        subject,
    };
    let mut out = Vec::with_capacity(256);
    Ok(write(layout, &observation, &mut out).map(|()| (out, observation.id(layout))))
}

/// A new observation: entity, observed_at, kind, priority, source, causes, patch, link and subject.
pub type NewObservation<'py> = (
    Bound<'py, PyAny>,
    Bound<'py, PyAny>,
    Bound<'py, PyAny>,
    Bound<'py, PyAny>,
    Bound<'py, PyTuple>,
    Bound<'py, PyAny>,
    Bound<'py, PyAny>,
    Option<Bound<'py, PyAny>>,
    Bound<'py, PyAny>,
);

/// Like `encode`, of an observation that Python has not checked, or, with `is_patch_checked`, only its patch. None also if
/// a part is invalid, or is not canonical as it is given.
pub fn encode_new(
    layout: &Layout,
    given: &NewObservation,
    is_patch_checked: bool,
) -> PyResult<Option<(Vec<u8>, [u8; 32])>> {
    let (mut parts, mut out) = (Vec::new(), Vec::with_capacity(512));
    if write_new(layout, given, is_patch_checked, &mut parts, &mut out)?.is_none() {
        return Ok(None);
    }
    // Reading it checks names, times and what belongs to the kind.
    let id = Observation::read(layout, &out, true).map(|read| read.id(layout));
    Ok(id.map(|id| (out, id)))
}

/// Writes a new observation. `parts` owns what the values of its patch borrow.
fn write_new<'py>(
    layout: &Layout,
    given: &NewObservation<'py>,
    is_patch_checked: bool,
    parts: &mut Vec<Part<'py>>,
    out: &mut Vec<u8>,
) -> PyResult<Option<()>> {
    let (entity, observed_at, kind, priority, source, causes, patch, link, subject) = given;
    let given_link = link.as_ref().and_then(link_of);
    let Some(patch) = patch_of(layout, patch, parts)? else { return Ok(None) };
    if !is_patch_checked && !patch.iter().all(|(place, value)| is_canonical(&layout.fields[*place], value)) {
        return Ok(None);
    }
    let Ok(source) = source.extract::<[Bound<'py, PyAny>; 5]>() else { return Ok(None) };
    let [agent, run, step, tool, seq] = &source;
    let written = || {
        let causes = causes_of(causes)?;
        let observation = Observation {
            entity: exact_text(entity)?,
            kind: kind_of(exact_text(kind)?)?,
            observed_at: exact_integer(observed_at)?,
            priority: i32::try_from(exact_integer(priority)?).ok()?,
            source: Source {
                agent: exact_text(agent)?,
                run: exact_text(run)?,
                step: exact_text(step)?,
                tool: exact_text(tool)?,
                seq: exact_integer(seq)?,
            },
            causes: causes.iter().map(|cause| cause.as_slice()).collect(),
            patch,
            cleared: Vec::new(),
            retracts: Vec::new(),
            link: given_link.as_ref().map(linked),
            subject: exact_text(subject)?,
        };
        write(layout, &observation, out)
    };
    Ok(if link.is_some() == given_link.is_some() { written() } else { None })
}

fn exact_text<'a>(given: &'a Bound<PyAny>) -> Option<&'a str> {
    given.cast_exact::<PyString>().ok()?.to_str().ok()
}

fn exact_integer(given: &Bound<PyAny>) -> Option<i64> {
    given.cast_exact::<PyInt>().ok()?.extract().ok()
}

/// Returns the ids in a list or a tuple, sorted and without repeats. Each is given as 32 bytes, or in hex.
fn causes_of(given: &Bound<PyAny>) -> Option<Vec<[u8; 32]>> {
    let given: Vec<Bound<PyAny>> = match given.cast_exact::<PyTuple>() {
        Ok(given) => given.iter().collect(),
        Err(_) => given.cast_exact::<PyList>().ok()?.iter().collect(),
    };
    let id = |each: &Bound<PyAny>| match each.cast_exact::<PyBytes>() {
        Ok(bytes) => bytes.as_bytes().try_into().ok(),
        Err(_) => id_of(exact_text(each)?),
    };
    let mut ids = given.iter().map(id).collect::<Option<Vec<_>>>()?;
    ids.sort_unstable();
    ids.dedup();
    Some(ids)
}

fn kind_of(name: &str) -> Option<observation::Kind> {
    match name {
        "assert" => Some(observation::Kind::Assert),
        "link" => Some(observation::Kind::Link),
        "unlink" => Some(observation::Kind::Unlink),
        _ => None,
    }
}

/// Returns the id in 64 hexadecimal digits.
fn id_of(text: &str) -> Option<[u8; 32]> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let byte = |pair: &[u8; 2]| u8::try_from(digit(pair[0])? << 4 | digit(pair[1])?).ok();
    let bytes = pairs.iter().map(byte).collect::<Option<Vec<u8>>>()?;
    bytes.try_into().ok().filter(|_| rest.is_empty())
}

/// Returns the values of a checked patch, by ascending index of their fields; None if Python must write it. `parts` owns
/// what the values borrow.
fn patch_of<'a, 'py>(
    layout: &Layout,
    given: &Bound<'py, PyAny>,
    parts: &'a mut Vec<Part<'py>>,
) -> PyResult<Option<Vec<(usize, Value<'a>)>>> {
    let Ok(given) = given.cast::<PyDict>() else { return Ok(None) };
    if take_apart(given.as_any(), 0, parts).is_none() {
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
    Ok(Some(patch))
}

/// Writes the framed bytes of an assert of fields or of a link; None if a value is not of its field's type.
pub fn write(layout: &Layout, observation: &Observation, out: &mut Vec<u8>) -> Option<()> {
    let source = &observation.source;
    out.extend_from_slice(&layout.frame);
    write_text(out, observation.entity);
    write_long(out, observation.kind as i64);
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
    out.extend_from_slice(&[0, 0]); // nothing cleared, nothing retracted
    match &observation.link {
        None => out.push(0),
        Some(Link { relation, target, validity }) => {
            out.push(2);
            write_text(out, relation);
            write_text(out, target);
            for time in [validity.from, validity.to] {
                match time {
                    None => out.push(0),
                    Some(micros) => {
                        out.push(2);
                        write_long(out, micros);
                    }
                }
            }
        }
    }
    write_text(out, observation.subject);
    Some(())
}
