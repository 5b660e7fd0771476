//! Folds the entities of a batch that have one type version.

use std::sync::Mutex;

use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::{PyBytes, PyList};

use crate::check;
use crate::fold::{self, Outcome, Record, Replayed, Told};
use crate::given::{layout_of, GivenField};
use crate::layout::{self, Definition, Layout};
use crate::parts::in_parts;
use crate::rows::{Row, Rows};
use crate::{in_python, unless_panicked};

/// Python's `Record`: partition, offset, recorded_at, entity, id, framed bytes.
type GivenRecord = (u16, i64, i64, Py<PyAny>, PyBackedBytes, PyBackedBytes);
/// An entity's name, its stored state, and its records in log order.
type GivenStored = (PyBackedStr, Option<PyBackedBytes>, Vec<GivenRecord>);
/// An entity's name, its state before a change, the records of the change in log order, and the stored change.
type GivenChange = (PyBackedStr, Option<PyBackedBytes>, Vec<GivenRecord>, PyBackedBytes);
/// An entity's name, all its distinct records in log order, and the offsets of its checkpoints.
type GivenCheckpoints = (PyBackedStr, Vec<GivenRecord>, Vec<i64>);

/// Folds entities of one type version.
#[pyclass(frozen, module = "refold_kernel")]
pub struct TypeFolder {
    pub layout: Layout,
    pub definition: Definition,
}

#[pymethods]
impl TypeFolder {
    #[new]
    fn new(
        type_name: &str,
        frame: [u8; layout::FRAME_BYTES],
        fields: Vec<GivenField>,
        fingerprint: [u8; 32],
        change_frame: [u8; layout::FRAME_BYTES],
        offset: u64,
    ) -> PyResult<Self> {
        let layout = layout_of(type_name, frame, fields)?;
        Ok(TypeFolder { layout, definition: Definition { fingerprint, change_frame, offset } })
    }

    /// The number of the type's fields that the kernel folds.
    #[getter]
    fn fields_folded(&self) -> usize {
        self.layout.fields.iter().filter(|field| field.folded().is_some()).count()
    }

    /// Compares stored changes with what their records fold to, with the GIL released. Returns the state after each change;
    /// None for one that Python must check.
    fn check_changes<'py>(&self, py: Python<'py>, changes: Vec<GivenChange>) -> Vec<Option<Bound<'py, PyBytes>>> {
        let records: Vec<Vec<Record>> = changes.iter().map(|(_, _, records, _)| records_of(records)).collect();
        let given: Vec<_> = changes
            .iter()
            .zip(&records)
            .map(|((name, packed, _, stored), records)| (&**name, packed.as_deref(), records, &**stored))
            .collect();
        let (layout, definition) = (&self.layout, &self.definition);
        let states: Vec<_> = py.detach(|| {
            let mut rows = Rows::default();
            let nothing = rows.mark();
            given
                .iter()
                .map(|(name, packed, records, stored)| {
                    rows.truncate(&nothing);
                    unless_panicked(|| check::change(layout, definition, name, *packed, records, stored, &mut rows))
                })
                .collect()
        });
        each_in_python(py, &states)
    }

    /// Folds entities from nothing, with the GIL released. Returns the checkpoints of each; None if Python must fold it.
    fn checkpoints<'py>(
        &self,
        py: Python<'py>,
        entities: Vec<GivenCheckpoints>,
    ) -> Vec<Option<Vec<Bound<'py, PyBytes>>>> {
        let records: Vec<Vec<Record>> = entities.iter().map(|(_, records, _)| records_of(records)).collect();
        let given: Vec<_> = entities
            .iter()
            .zip(&records)
            .map(|((name, _, offsets), records)| (&**name, records, offsets.as_slice()))
            .collect();
        let layout = &self.layout;
        let found: Vec<Option<Vec<Vec<u8>>>> = py.detach(|| {
            given
                .iter()
                .map(|(name, records, offsets)| unless_panicked(|| fold::checkpoints(layout, name, records, offsets)))
                .collect()
        });
        found.iter().map(|each| each.as_ref().map(|values| in_python(py, values))).collect()
    }

    /// Folds the records of some entities into their states only, with the GIL released.
    ///
    /// Returns, for each entity in the given order, None if it is left to Python, else its state and the number of new
    /// records; no state if none was new.
    fn replay<'py>(&self, py: Python<'py>, entities: Vec<GivenStored>) -> PyResult<Bound<'py, PyList>> {
        let records: Vec<Vec<Record>> = entities.iter().map(|(_, _, records)| records_of(records)).collect();
        let given: Vec<_> = entities
            .iter()
            .zip(&records)
            .map(|((name, packed, _), records)| (&**name, packed.as_deref(), records))
            .collect();
        let layout = &self.layout;
        let replay = |(name, packed, records): &(&str, Option<&[u8]>, &Vec<Record>)| {
            unless_panicked(|| fold::replay(layout, name, *packed, records))
        };
        let parts = py.detach(|| in_parts(&given, |part| part.iter().map(replay).collect::<Vec<_>>()));
        let replayed: Vec<Option<Replayed>> = parts.into_iter().flatten().collect();
        let given = replayed.iter().map(|each| {
            let each = each.as_ref()?;
            Some((each.state.as_ref().map(|state| PyBytes::new(py, state)), each.steps))
        });
        PyList::new(py, given.collect::<Vec<_>>())
    }
}

/// Returns bytes, or None, for each item.
fn each_in_python<'py>(py: Python<'py>, each: &[Option<Vec<u8>>]) -> Vec<Option<Bound<'py, PyBytes>>> {
    each.iter().map(|bytes| bytes.as_ref().map(|bytes| PyBytes::new(py, bytes))).collect()
}

fn records_of(given: &[GivenRecord]) -> Vec<Record<'_>> {
    given
        .iter()
        .map(|(partition, offset, recorded_at, _, id, data)| Record {
            partition: *partition,
            offset: *offset,
            recorded_at: *recorded_at,
            id,
            data,
        })
        .collect()
}

// New buffers for each batch cost a page fault for each of their pages.
static BUFFERS: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());
const BUFFERS_MAX: usize = 8;
const BUFFER_BYTES_MAX: usize = 8 << 20;

/// Returns a kept buffer, or an empty one.
fn buffer() -> Vec<u8> {
    BUFFERS.lock().ok().and_then(|mut kept| kept.pop()).unwrap_or_default()
}

/// Keeps the buffers of parts whose results Python has.
pub fn keep_buffers(folded: Vec<FoldedPart>) {
    let Ok(mut kept) = BUFFERS.lock() else { return };
    for buffer in folded.into_iter().map(|part| part.rows.into_buffer()) {
        if kept.len() < BUFFERS_MAX && buffer.capacity() <= BUFFER_BYTES_MAX {
            kept.push(buffer);
        }
    }
}

/// About what a record adds to its rows, its change and its entity's state, beside its own bytes.
const BYTES_AROUND: usize = 700;

/// An entity to fold: its name, state, the batch's next offset, its records, and what the timeline has of them.
pub type Unfolded<'a> = (&'a str, Option<&'a [u8]>, i64, &'a [Record<'a>], &'a Told);

/// Returns room for the rows, states and changes of some entities.
fn room_for(entities: &[Unfolded], buffer: Vec<u8>) -> Rows {
    let records = entities.iter().map(|(_, _, _, records, _)| records.len()).sum();
    let bytes = |(_, packed, _, records, _): &Unfolded| {
        packed.map_or(0, <[u8]>::len) + records.iter().map(|each| 2 * each.data.len() + BYTES_AROUND).sum::<usize>()
    };
    Rows::with_room(buffer, entities.iter().map(bytes).sum(), records)
}

/// Some of the entities of a batch, folded. The rows of each index are in the order of their keys: RocksDB writes them
/// faster.
pub struct FoldedPart {
    pub outcomes: Vec<Option<Outcome>>,
    pub rows: Rows,
}

impl FoldedPart {
    pub fn of(layout: &Layout, definition: &Definition, entities: &[Unfolded]) -> Self {
        let mut rows = room_for(entities, buffer());
        let fold = |(name, packed, through, records, told): &Unfolded| {
            let mark = rows.mark();
            let found =
                unless_panicked(|| fold::fold(layout, definition, name, *packed, records, *through, told, &mut rows));
            if !matches!(found, Some(Outcome::Folded(_))) {
                rows.truncate(&mark);
            }
            found
        };
        let outcomes = entities.iter().map(fold).collect();
        rows.sort();
        FoldedPart { outcomes, rows }
    }
}

/// The rows that a batch puts into the indexes, in the order of their keys; `ids` has only keys.
pub struct IndexRows<'a> {
    timeline: Vec<(&'a [u8], &'a [u8])>,
    arrivals: Vec<(&'a [u8], &'a [u8])>,
    ids: Vec<&'a [u8]>,
    checkpoints: Vec<(&'a [u8], &'a [u8])>,
}

/// Lists of alternating keys and values: the timeline, the arrivals, the ids (keys only) and the checkpoints.
type ListedRows<'py> = (Vec<Bound<'py, PyBytes>>, Vec<Bound<'py, PyBytes>>, Vec<Bound<'py, PyBytes>>, Vec<Bound<'py, PyBytes>>);

impl<'a> IndexRows<'a> {
    /// Merges the rows of the parts of a batch, which are in order in each.
    pub fn of(folded: &'a [FoldedPart]) -> Self {
        let in_order = |index: fn(&Rows) -> &Vec<Row>| {
            let rows = |part: &'a FoldedPart| {
                index(&part.rows).iter().map(|(key, value)| (part.rows.get(*key), part.rows.get(*value)))
            };
            let mut sorted: Vec<_> = folded.iter().flat_map(rows).collect();
            sorted.sort(); // it merges what is sorted
            sorted
        };
        let keys = |part: &'a FoldedPart| part.rows.ids.iter().map(|key| part.rows.get(*key));
        let mut ids: Vec<_> = folded.iter().flat_map(keys).collect();
        ids.sort();
        IndexRows {
            timeline: in_order(|rows| &rows.timeline),
            arrivals: in_order(|rows| &rows.arrivals),
            ids,
            checkpoints: in_order(|rows| &rows.checkpoints),
        }
    }

    /// Returns the rows as lists of Python.
    pub fn in_python<'py>(&self, py: Python<'py>) -> ListedRows<'py> {
        let listed = |rows: &[(&[u8], &[u8])]| {
            let mut found = Vec::with_capacity(2 * rows.len());
            for (key, value) in rows {
                found.push(PyBytes::new(py, key));
                found.push(PyBytes::new(py, value));
            }
            found
        };
        (listed(&self.timeline), listed(&self.arrivals), in_python(py, &self.ids), listed(&self.checkpoints))
    }
}
