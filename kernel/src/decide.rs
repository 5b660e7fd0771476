//! Decides fetched records, as streams/worker/verdicts.py does, if they are plain observations.

use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};

use crate::layout::{Layout, FRAME_BYTES};
use crate::observation::Observation;
use crate::place;

/// The header with a record's id.
const ID: &str = "refold-id";

/// A record as Python's `Raw`: offset, timestamp, key, value, headers.
pub type GivenRaw = (i64, i64, PyBackedBytes, PyBackedBytes, Vec<(PyBackedStr, PyBackedBytes)>);

/// Returns the records before the first whose `Raw` has an unusual form.
pub fn usual(raws: &Bound<PyAny>) -> PyResult<Vec<GivenRaw>> {
    let mut found = Vec::new();
    for raw in raws.try_iter()? {
        match raw?.extract() {
            Ok(raw) => found.push(raw),
            Err(_) => break,
        }
    }
    Ok(found)
}

/// Returns the id of the observation in a record of a partition; None if Python must decide the record.
///
/// Everything is checked: the bytes are an observation, the key is its entity's, the entity belongs in the partition,
/// and the header, if there is one, is the id.
pub fn decide(layouts: &[&Layout], partition: u32, partitions: u32, raw: &GivenRaw) -> Option<[u8; 32]> {
    let (_, _, key, value, headers) = raw;
    let frame = value.get(..FRAME_BYTES)?;
    let layout = layouts.iter().find(|layout| layout.frame == frame)?;
    let observation = Observation::read(layout, value, false).filter(Observation::is_plain)?;
    if **key != *observation.entity.as_bytes() || place::partition(observation.entity, partitions)? != partition {
        return None;
    }
    let id = observation.id(layout);
    let is_said = match headers.as_slice() {
        [] => true,
        [(name, said)] => **name == *ID && **said == id,
        _ => false,
    };
    is_said.then_some(id)
}
