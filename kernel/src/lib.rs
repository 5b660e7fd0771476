//! The native kernel of refold: it reads observations and folds them. Its interface is refold's own, told apart by FORMAT:
//! avro/kernel.py has its types, and docs/reference/kernel.md says what crosses.
//!
//! Every function here gives the bytes that Python gives, or leaves the work to Python. It has no unsafe code, and a panic
//! leaves an entity to Python as well.

mod avro;
mod cbor;
mod fold;
mod layout;
mod msgpack;
mod observation;
mod state;
mod value;

use std::panic::{catch_unwind, AssertUnwindSafe};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};

use crate::fold::{Folding, Record};
use crate::layout::{Branch, Definition, Field, Layout, Reducer};
use crate::observation::{Observation, Source};
use crate::value::{Kind, Value};

/// Changes with whatever crosses the boundary, and with the stored forms that the kernel writes.
const FORMAT: u32 = 1;

/// A record as Python's `Record`: partition, offset, recorded_at, entity, id, framed bytes.
type GivenRecord = (u16, i64, i64, Py<PyAny>, PyBackedBytes, PyBackedBytes);
/// An entity's name, its stored state, the next offset of its partition's batch, and its records in log order.
type GivenEntity = (PyBackedStr, Option<PyBackedBytes>, i64, Vec<GivenRecord>);
/// A field: its first name, its reducer, and the branch that holds its own type: byte, kind, low, end, symbols.
type GivenField = (String, String, Option<(u8, String, i128, i128, Vec<String>)>);
/// agent, run, step, tool and seq.
type GivenSource<'a> = (&'a str, &'a str, &'a str, &'a str, i64);

/// Reads the observations of one type version.
#[pyclass(frozen, module = "refold_kernel")]
struct ObservationReader {
    layout: Layout,
    names: Vec<Py<PyString>>,
}

#[pymethods]
impl ObservationReader {
    #[new]
    fn new(
        py: Python<'_>,
        type_name: &str,
        frame: [u8; layout::FRAME_BYTES],
        fields: Vec<GivenField>,
    ) -> PyResult<Self> {
        let layout = layout_of(type_name, frame, fields)?;
        let names = layout.fields.iter().map(|field| PyString::intern(py, &field.name).unbind()).collect();
        Ok(ObservationReader { layout, names })
    }

    /// The observation in framed bytes: entity, observed_at, priority, source, causes, patch, subject and id.
    ///
    /// None where it is not an assert of fields alone, or not sound, or has values that Python checks.
    fn read<'py>(&self, py: Python<'py>, data: &[u8]) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let Some(read) = unless_panicked(|| Observation::read(&self.layout, data, false)) else {
            return Ok(None);
        };
        let Some(id) = unless_panicked(|| Some(read.id(&self.layout))) else {
            return Ok(None);
        };
        let patch = PyDict::new(py);
        for (place, value) in &read.patch {
            patch.set_item(self.names[*place].bind(py), python_value(py, value)?)?;
        }
        let causes = PyTuple::new(py, read.causes.iter().map(|cause| PyBytes::new(py, cause)))?;
        let Source { agent, run, step, tool, seq } = read.source;
        let source: GivenSource = (agent, run, step, tool, seq);
        let parts = (read.entity, read.observed_at, read.priority, source, causes, patch, read.subject);
        let (entity, observed_at, priority, source, causes, patch, subject) = parts;
        let id = PyBytes::new(py, &id);
        (entity, observed_at, priority, source, causes, patch, subject, id).into_pyobject(py).map(Some)
    }

    /// The id of the observation in framed bytes that this process made itself; None where Python finds it.
    fn id_of<'py>(&self, py: Python<'py>, data: &[u8]) -> Option<Bound<'py, PyBytes>> {
        let id = unless_panicked(|| Some(Observation::read(&self.layout, data, true)?.id(&self.layout)))?;
        Some(PyBytes::new(py, &id))
    }
}

fn python_value<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    Ok(match *value {
        Value::Text(text) => text.into_pyobject(py)?.into_any(),
        Value::Integer(number) => match i64::try_from(number) {
            Ok(number) => number.into_pyobject(py)?.into_any(),
            Err(_) => number.into_pyobject(py)?.into_any(),
        },
        Value::Float(number) => number.into_pyobject(py)?.into_any(),
        Value::Boolean(truth) => truth.into_pyobject(py)?.to_owned().into_any(),
    })
}

/// What a function gives; None where it panics, which it does only for a defect. Nothing that is shared changes in it.
fn unless_panicked<T>(function: impl FnOnce() -> Option<T>) -> Option<T> {
    catch_unwind(AssertUnwindSafe(function)).unwrap_or(None)
}

/// Folds entities of one type version.
#[pyclass(frozen, module = "refold_kernel")]
struct TypeFolder {
    layout: Layout,
    definition: Definition,
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

    /// How many of the type's fields are folded here.
    #[getter]
    fn fields_folded(&self) -> usize {
        self.layout.fields.iter().filter(|field| field.folded().is_some()).count()
    }

    /// Folds the records of some entities, with the GIL released.
    ///
    /// Returns, for each entity in its order, None where it is left to Python, else (state, change, version before, steps,
    /// late) where it changed and () where all its records were known. After that the rows of the timeline, the arrivals,
    /// the ids and the checkpoints of all of them: lists of keys and values in turn, and of keys alone for the ids.
    fn fold<'py>(&self, py: Python<'py>, entities: Vec<GivenEntity>) -> PyResult<Bound<'py, PyTuple>> {
        let records: Vec<Vec<Record>> = entities.iter().map(|(_, _, _, records)| records_of(records)).collect();
        let given: Vec<_> = entities
            .iter()
            .zip(&records)
            .map(|((name, packed, through, _), records)| (&**name, packed.as_deref(), *through, records))
            .collect();
        let (layout, definition) = (&self.layout, &self.definition);
        let folded: Vec<Option<Folding>> = py.detach(|| {
            given
                .iter()
                .map(|(name, packed, through, records)| {
                    unless_panicked(|| fold::fold(layout, definition, name, *packed, records, *through))
                })
                .collect()
        });
        given_back(py, &folded)
    }
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

fn given_back<'py>(py: Python<'py>, folded: &[Option<Folding>]) -> PyResult<Bound<'py, PyTuple>> {
    let entities = PyList::empty(py);
    let [timeline, arrivals, ids, checkpoints] = [(); 4].map(|()| PyList::empty(py));
    for each in folded {
        let Some(Folding { changed, rows }) = each else {
            entities.append(py.None())?;
            continue;
        };
        match changed {
            None => entities.append(PyTuple::empty(py))?,
            Some(changed) => entities.append((
                PyBytes::new(py, &changed.state),
                PyBytes::new(py, &changed.change),
                changed.version_before,
                changed.steps,
                changed.late,
            ))?,
        }
        for (rows, list) in
            [(&rows.timeline, &timeline), (&rows.arrivals, &arrivals), (&rows.checkpoints, &checkpoints)]
        {
            for (key, value) in rows {
                list.append(PyBytes::new(py, key))?;
                list.append(PyBytes::new(py, value))?;
            }
        }
        for key in &rows.ids {
            ids.append(PyBytes::new(py, key))?;
        }
    }
    (entities, timeline, arrivals, ids, checkpoints).into_pyobject(py)
}

fn layout_of(type_name: &str, frame: [u8; layout::FRAME_BYTES], fields: Vec<GivenField>) -> PyResult<Layout> {
    let fields = fields.into_iter().map(field).collect::<PyResult<Vec<Field>>>()?;
    Ok(Layout::new(type_name, frame, fields))
}

fn field((name, reducer, branch): GivenField) -> PyResult<Field> {
    let mut key = Vec::new();
    cbor::text(&mut key, &name);
    let branch = match branch {
        Some((byte, kind, low, end, symbols)) => Some(Branch { kind: kind_named(&kind, low, end, symbols)?, byte }),
        None => None,
    };
    Ok(Field { name, key, branch, reducer: Reducer::named(&reducer) })
}

fn kind_named(name: &str, low: i128, end: i128, symbols: Vec<String>) -> PyResult<Kind> {
    Ok(match name {
        "text" => Kind::Text,
        "checked text" => Kind::CheckedText,
        "integer" => Kind::Integer { low, end },
        "boolean" => Kind::Boolean,
        "enum" => Kind::Enum { symbols },
        "float" => Kind::Float,
        "double" => Kind::Double,
        _ => return Err(PyValueError::new_err(format!("the kernel knows no kind {name}"))),
    })
}

#[pymodule]
fn refold_kernel(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("FORMAT", FORMAT)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<ObservationReader>()?;
    module.add_class::<TypeFolder>()
}
