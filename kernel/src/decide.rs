//! Decides fetched records, as streams/worker/verdicts.py does, if they are plain observations.

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};

use crate::layout::{Layout, FRAME_BYTES};
use crate::observation::Observation;
use crate::place;

/// The header with a record's id.
const ID: &str = "refold-id";

/// A fetched record of the usual form, from Python's `RawRecord`. timestamp in milliseconds.
pub struct Fetched {
    pub offset: i64,
    pub timestamp: i64,
    pub key: PyBackedBytes,
    pub value: PyBackedBytes,
    header: Header,
}

/// The headers of a record.
enum Header {
    Nothing,
    Id([u8; 32]),
    Other,
}

impl Fetched {
    /// Reads a `RawRecord`: offset, timestamp, key, value, headers. None if it has no key or no value, or is something else.
    fn of(raw: &Bound<PyAny>) -> Option<Self> {
        let raw = raw.cast::<PyTuple>().ok().filter(|raw| raw.len() == 5)?;
        let integer = |place| raw.get_borrowed_item(place).ok()?.extract::<i64>().ok();
        let bytes = |place| Some(PyBackedBytes::from(raw.get_item(place).ok()?.cast_into::<PyBytes>().ok()?));
        let headers = raw.get_borrowed_item(4).ok()?;
        let header = match headers.cast::<PyList>() {
            Ok(headers) if headers.is_empty() => Header::Nothing,
            Ok(headers) if headers.len() == 1 => id_in(&headers).map_or(Header::Other, Header::Id),
            _ => Header::Other,
        };
        Some(Fetched { offset: integer(0)?, timestamp: integer(1)?, key: bytes(2)?, value: bytes(3)?, header })
    }
}

/// Returns the id in the first header, if it has one.
fn id_in(headers: &Bound<PyList>) -> Option<[u8; 32]> {
    let header = headers.get_item(0).ok()?.cast_into::<PyTuple>().ok()?;
    let (name, value) = (header.get_borrowed_item(0).ok()?, header.get_borrowed_item(1).ok()?);
    let is_id = name.cast::<PyString>().ok()?.to_str().ok()? == ID;
    is_id.then(|| value.cast::<PyBytes>().ok()?.as_bytes().try_into().ok())?
}

/// Returns the records before the first that has an unusual form.
pub fn fetched(raws: &Bound<PyAny>) -> PyResult<Vec<Fetched>> {
    let mut found = Vec::with_capacity(raws.len().unwrap_or(0));
    for raw in raws.try_iter()? {
        match Fetched::of(&raw?) {
            Some(raw) => found.push(raw),
            None => break,
        }
    }
    Ok(found)
}

/// Returns the id of the observation in a record of a partition; None if Python must decide the record.
///
/// Everything is checked: the bytes are an observation, the key is its entity's, the entity belongs in the partition,
/// and the header, if there is one, is the id.
pub fn decide(layouts: &[&Layout], partition: u16, partitions: u32, raw: &Fetched) -> Option<[u8; 32]> {
    let frame = raw.value.get(..FRAME_BYTES)?;
    let layout = layouts.iter().find(|layout| layout.frame == frame)?;
    let observation = Observation::read(layout, &raw.value, false).filter(Observation::is_plain)?;
    let is_at_home = place::partition(observation.entity, partitions)? == u32::from(partition);
    if *raw.key != *observation.entity.as_bytes() || !is_at_home {
        return None;
    }
    let id = observation.id(layout);
    let is_said = match &raw.header {
        Header::Nothing => true,
        Header::Id(said) => *said == id,
        Header::Other => false,
    };
    is_said.then_some(id)
}
