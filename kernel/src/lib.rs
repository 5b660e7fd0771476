//! The native kernel of refold: it decodes observations and folds them. Its interface is internal to refold; FORMAT is
//! its version. avro/kernel.py has its types, and docs/reference/kernel.md describes the arguments and results.
//!
//! Every function returns the same bytes as Python, or leaves the work to Python. There is no unsafe code. A panic also
//! leaves the entity to Python.

mod attributes;
mod avro;
mod cbor;
mod cell;
mod check;
mod chunk;
mod conventions;
mod decide;
mod decided;
mod door;
mod exact;
mod fold;
mod given;
mod json;
mod json_value;
mod layers;
mod layout;
mod links;
mod merge;
mod messages;
mod msgpack;
mod node;
mod observation;
mod order_keys;
mod otlp;
mod parts;
mod place;
mod received;
mod rows;
mod state;
mod stated;
mod type_folder;
mod value;
#[cfg(feature = "wrong")]
mod wrong;

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};

use crate::decided::{DecidedRecords, GroupedRecords, RecordDecider};
use crate::door::GivenObservation;
use crate::fold::Record;
use crate::given::{layout_of, GivenField};
use crate::layout::Layout;
use crate::observation::{Observation, Source};
use crate::rows::{Row, Rows, Span};
use crate::type_folder::TypeFolder;
use crate::value::Value;

/// Must change whenever arguments, results or the stored forms that the kernel writes change.
const FORMAT: u32 = 15;

/// A record with its entity as a text.
type NamedRecord = (u16, i64, i64, PyBackedStr, PyBackedBytes, PyBackedBytes);
/// agent, run, step, tool and seq.
type GivenSource<'a> = (&'a str, &'a str, &'a str, &'a str, i64);

/// Decodes and encodes the observations of one type version.
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

    /// Decodes the observation in framed bytes: entity, observed_at, priority, source, causes, patch, subject and id.
    ///
    /// Returns None if it is not an assert of fields only, is invalid, or has values that Python must check.
    fn read<'py>(&self, py: Python<'py>, data: &[u8]) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let plain = || Observation::read(&self.layout, data, false).filter(Observation::is_plain);
        let Some(read) = unless_panicked(plain) else {
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

    /// Returns the names of the values of a patch, by their fields' first names, that Python must check; the others are
    /// canonical as given. None if Python must check the patch as a whole.
    fn doubtful<'py>(&self, patch: &Bound<'py, PyDict>) -> PyResult<Option<Vec<Bound<'py, PyString>>>> {
        unless_panicked(|| Some(door::doubtful(&self.layout, patch))).unwrap_or(Ok(None))
    }

    /// Returns the framed bytes of a checked observation, and its id; None if Python must write it.
    fn encode<'py>(
        &self,
        py: Python<'py>,
        observation: GivenObservation<'py>,
    ) -> PyResult<Option<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)>> {
        let written = unless_panicked(|| Some(door::encode(&self.layout, &observation))).unwrap_or(Ok(None))?;
        Ok(written.map(|(data, id)| (PyBytes::new(py, &data), PyBytes::new(py, &id))))
    }

    /// Like `encode`, of the parts of a new observation that Python has not checked, or, with `is_patch_checked`, only its
    /// patch. None also if a part is invalid, or is not canonical as it is given.
    fn encode_new<'py>(
        &self,
        py: Python<'py>,
        parts: door::NewObservation<'py>,
        is_patch_checked: bool,
    ) -> PyResult<Option<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)>> {
        let write = || Some(door::encode_new(&self.layout, &parts, is_patch_checked));
        let written = unless_panicked(write).unwrap_or(Ok(None))?;
        Ok(written.map(|(data, id)| (PyBytes::new(py, &data), PyBytes::new(py, &id))))
    }

    /// Returns the id of an observation whose framed bytes this process wrote; None if Python must compute it.
    fn id_of<'py>(&self, py: Python<'py>, data: &[u8]) -> Option<Bound<'py, PyBytes>> {
        let id = unless_panicked(|| Some(Observation::read(&self.layout, data, true)?.id(&self.layout)))?;
        Some(PyBytes::new(py, &id))
    }
}

/// Checks stored records, with the readers of the type versions whose records it may confirm.
#[pyclass(frozen, module = "refold_kernel")]
struct RecordChecker {
    readers: Vec<Py<ObservationReader>>,
    partitions: u32,
}

#[pymethods]
impl RecordChecker {
    #[new]
    fn new(readers: Vec<Py<ObservationReader>>, partitions: u32) -> Self {
        RecordChecker { readers, partitions }
    }

    /// Returns whether each record is an observation with its own id, in its own partition, that names no contents and
    /// retracts nothing. Python must check the others. The GIL is released.
    fn confirm(&self, py: Python<'_>, records: Vec<NamedRecord>) -> Vec<bool> {
        self.checked(py, &records).0
    }

    /// Like `confirm`, and returns, for the confirmed records in their order, the keys and the values of their rows in the
    /// timeline, and of those in the arrivals, and their keys in the index of ids.
    fn rows<'py>(&self, py: Python<'py>, records: Vec<NamedRecord>) -> PyResult<Bound<'py, PyTuple>> {
        let (confirmed, rows) = self.checked(py, &records);
        let bytes = |span: Span| PyBytes::new(py, rows.get(span));
        let keys = |rows: &[Row]| rows.iter().map(|(key, _)| bytes(*key)).collect::<Vec<_>>();
        let values = |rows: &[Row]| rows.iter().map(|(_, value)| bytes(*value)).collect::<Vec<_>>();
        (
            confirmed,
            keys(&rows.timeline),
            values(&rows.timeline),
            keys(&rows.arrivals),
            values(&rows.arrivals),
            rows.ids.iter().map(|key| bytes(*key)).collect::<Vec<_>>(),
        )
            .into_pyobject(py)
    }
}

impl RecordChecker {
    /// Which records are confirmed, and the rows of these.
    fn checked(&self, py: Python<'_>, records: &[NamedRecord]) -> (Vec<bool>, Rows) {
        let layouts: Vec<&Layout> = self.readers.iter().map(|reader| &reader.get().layout).collect();
        let mut rows = Rows::default();
        let check = |(partition, offset, recorded_at, entity, id, data): &NamedRecord| {
            let record = Record { partition: *partition, offset: *offset, recorded_at: *recorded_at, id, data };
            let mark = rows.mark();
            let found = unless_panicked(|| check::record(&layouts, self.partitions, entity, &record, &mut rows));
            if found.is_none() {
                rows.truncate(&mark);
            }
            found.is_some()
        };
        let confirmed = py.detach(|| records.iter().map(check).collect());
        (confirmed, rows)
    }
}

/// Returns the beginnings of framed changes: the entity, the definition's fingerprint, the versions before and after, and
/// the next offset of the batch. None for a change that only a new definition made, or of another form.
#[pyfunction]
fn change_heads<'py>(py: Python<'py>, changes: Vec<PyBackedBytes>) -> PyResult<Bound<'py, PyList>> {
    let heads = changes.iter().map(|data| {
        let head = unless_panicked(|| check::ChangeHead::read(data))?;
        Some((head.entity, PyBytes::new(py, head.fingerprint), head.from_version, head.to_version, head.through))
    });
    PyList::new(py, heads.collect::<Vec<_>>())
}

/// Returns the storage key of each entity's state.
#[pyfunction]
fn placed<'py>(py: Python<'py>, entities: Vec<PyBackedStr>) -> Vec<Bound<'py, PyBytes>> {
    entities.iter().map(|entity| PyBytes::new(py, &place::placed(entity.as_bytes()))).collect()
}

/// Returns the spans of a request of OTLP in protobuf: for each scope the texts of its resource and of itself, and its
/// spans, each with its ids in hex and its text. Then how many spans have no valid ids. None if Python must decode it.
/// The GIL is released while it decodes.
#[pyfunction]
fn spans_of<'py>(py: Python<'py>, body: PyBackedBytes) -> PyResult<Option<(Bound<'py, PyList>, usize)>> {
    let Some((scopes, rejected)) = py.detach(|| unless_panicked(|| otlp::decode(&body))) else {
        return Ok(None);
    };
    let parts = scopes.into_iter().map(|each| {
        let spans: Vec<_> = each.spans.into_iter().map(|span| (span.trace_id, span.id, span.text)).collect();
        (each.resource, each.scope, spans)
    });
    Ok(Some((PyList::new(py, parts.collect::<Vec<_>>())?, rejected)))
}

/// An observation in Python: its entity, its id and its framed bytes.
type GivenMade<'py> = (String, Bound<'py, PyBytes>, Bound<'py, PyBytes>);
/// Observations, and contents by their SHA-256.
type GivenStated<'py> = (Vec<GivenMade<'py>>, Vec<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)>);

fn stated_in_python(py: Python<'_>, stated: stated::Stated) -> GivenStated<'_> {
    let made = stated.made.into_iter();
    let contents = stated.contents.iter();
    (
        made.map(|each| (each.entity, PyBytes::new(py, &each.id), PyBytes::new(py, &each.data))).collect(),
        contents.map(|(digest, content)| (PyBytes::new(py, digest), PyBytes::new(py, content))).collect(),
    )
}

/// Observes the spans of requests of OTLP, with the readers of the shipped types.
#[pyclass(frozen, module = "refold_kernel")]
struct SpanObserver {
    step: Py<ObservationReader>,
    action: Py<ObservationReader>,
    run: Py<ObservationReader>,
    document: Py<ObservationReader>,
}

#[pymethods]
impl SpanObserver {
    #[new]
    fn new(
        step: Py<ObservationReader>,
        action: Py<ObservationReader>,
        run: Py<ObservationReader>,
        document: Py<ObservationReader>,
    ) -> Self {
        SpanObserver { step, action, run, document }
    }

    /// Decodes a request as `spans_of`, and observes its spans, with the GIL released.
    ///
    /// Returns for each scope: the texts of its resource and of itself; the digest of both, with their observation, or
    /// None; how many spans were observed, and their observations; and the spans that Python must observe, as `spans_of`.
    /// Then how many spans have no valid ids. None as `spans_of`.
    fn observe<'py>(&self, py: Python<'py>, body: PyBackedBytes) -> PyResult<Option<(Bound<'py, PyList>, usize)>> {
        let layouts = received::Layouts {
            step: &self.step.get().layout,
            action: &self.action.get().layout,
            run: &self.run.get().layout,
            document: &self.document.get().layout,
        };
        let observed = py.detach(|| {
            let (scopes, rejected) = unless_panicked(|| otlp::decode(&body))?;
            Some((scopes.into_iter().map(|scoped| received::observed(&layouts, scoped)).collect::<Vec<_>>(), rejected))
        });
        let Some((scopes, rejected)) = observed else { return Ok(None) };
        let found = PyList::empty(py);
        for scope in scopes {
            let origin = scope.origin.map(|(digest, stated)| (digest, stated_in_python(py, stated)));
            let stated = stated_in_python(py, scope.stated);
            found.append((scope.resource, scope.scope, origin, scope.count, stated, scope.left))?;
        }
        Ok(Some((found, rejected)))
    }
}

/// Writes a table's rows, in order, as chunks of `.snapshots`.
#[pyclass(module = "refold_kernel")]
struct BaseWriter(chunk::BaseWriter);

#[pymethods]
impl BaseWriter {
    #[new]
    fn new(limit: usize) -> Self {
        BaseWriter(chunk::BaseWriter::new(limit))
    }

    /// Adds rows (the entity's storage key, its state), with the GIL released, and returns the chunks that are full; None
    /// if a row is damaged or out of order, after which this writer is of no use.
    fn add<'py>(
        &mut self,
        py: Python<'py>,
        rows: Vec<(PyBackedBytes, PyBackedBytes)>,
    ) -> Option<Vec<Bound<'py, PyBytes>>> {
        let writer = &mut self.0;
        let add = || rows.iter().map(|(key, state)| writer.add(key, state)).collect::<Option<Vec<_>>>();
        let chunks = py.detach(|| unless_panicked(add))?;
        Some(chunks.into_iter().flatten().map(|chunk| PyBytes::new(py, &chunk)).collect())
    }

    /// Returns the last chunk, if any, the number of entities, and for each slot: its number, the digests of its buckets,
    /// and what each of them covers. None as in `add`.
    fn end<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let writer = &mut self.0;
        let Some(chunk::Ended { last, slots, entities }) = py.detach(|| unless_panicked(|| writer.end())) else {
            return Ok(None);
        };
        let slots = slots.iter().map(|(number, slot)| {
            let preimages = slot.preimages.iter().map(|each| PyBytes::new(py, each)).collect::<Vec<_>>();
            (*number, PyBytes::new(py, &slot.digests), preimages)
        });
        let last = last.map(|chunk| PyBytes::new(py, &chunk));
        (last, entities, slots.collect::<Vec<_>>()).into_pyobject(py).map(Some)
    }
}

/// Writes the rows that changed as chunks of `.snapshots`.
#[pyclass(module = "refold_kernel")]
struct DeltaWriter(chunk::DeltaWriter);

#[pymethods]
impl DeltaWriter {
    #[new]
    fn new(limit: usize, start: u64, is_whole: bool) -> Self {
        DeltaWriter(chunk::DeltaWriter::new(limit, start, is_whole))
    }

    /// Adds rows (the entity's storage key, its state) of whole places, with the GIL released if they are many. Returns the
    /// chunks that are full, the places, and the preimage of each. None if a row is damaged or out of order, after which
    /// this writer is of no use.
    fn add<'py>(
        &mut self,
        py: Python<'py>,
        rows: Vec<(PyBackedBytes, PyBackedBytes)>,
    ) -> Option<(Vec<Bound<'py, PyBytes>>, Vec<u32>, Vec<Bound<'py, PyBytes>>)> {
        let writer = &mut self.0;
        let given: Vec<(&[u8], &[u8])> = rows.iter().map(|(key, state)| (&**key, &**state)).collect();
        let add = || unless_panicked(|| writer.add(&given));
        let chunk::Added { chunks, places, preimages } = detached_if_long(py, given.len(), add)?;
        Some((in_python(py, &chunks), places, in_python(py, &preimages)))
    }

    /// Returns the last chunk, if any, and the number of changed entities. None as in `add`.
    fn end<'py>(&mut self, py: Python<'py>) -> Option<(Option<Bound<'py, PyBytes>>, usize)> {
        let writer = &mut self.0;
        let (last, entities) = unless_panicked(|| writer.end())?;
        Some((last.map(|chunk| PyBytes::new(py, &chunk)), entities))
    }
}

/// Merges the spans of an epoch, which are sorted by place, to the chunks of a base. Its calls keep the GIL.
#[pyclass(module = "refold_kernel")]
struct SpanMerger(merge::SpanMerger<PyBackedBytes>);

#[pymethods]
impl SpanMerger {
    #[new]
    fn new(limit: usize, spans: usize) -> Self {
        SpanMerger(merge::SpanMerger::new(limit, spans))
    }

    /// Takes the next chunk of some spans, each with its span's number, None for a span that has ended. Returns the chunks of
    /// the base that are full, and the numbers of the spans of which the next chunk is needed. None if a chunk is damaged,
    /// after which this merger is of no use.
    fn add<'py>(
        &mut self,
        py: Python<'py>,
        given: Vec<(usize, Option<PyBackedBytes>)>,
    ) -> Option<(Vec<Bound<'py, PyBytes>>, Vec<usize>)> {
        let merger = &mut self.0;
        let (full, needed) = unless_panicked(|| merger.add(given))?;
        Some((in_python(py, &full), needed))
    }

    /// Returns the last chunk, if any, the number of entities, the digests of the buckets of each slot that has one, and the
    /// digest of each span. None if a span has not ended, or the kernel panicked.
    fn end<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let merger = &mut self.0;
        let Some(merge::Merged { last, entities, slots, spans }) = unless_panicked(|| merger.end()) else {
            return Ok(None);
        };
        let last = last.map(|chunk| PyBytes::new(py, &chunk));
        let slots: Vec<_> = slots.iter().map(|(slot, digests)| (*slot, PyBytes::new(py, digests))).collect();
        (last, entities, slots, in_python(py, &spans)).into_pyobject(py).map(Some)
    }
}

/// Merges the layers of an epoch.
#[pyclass(module = "refold_kernel")]
struct LayerMerger(layers::Layers);

#[pymethods]
impl LayerMerger {
    #[new]
    fn new() -> Self {
        LayerMerger(layers::Layers::default())
    }

    /// Adds a chunk of a layer below all that were added before; false if Python must merge all of them, because it is
    /// damaged. first: the number of its first group.
    fn add(&mut self, data: &[u8], first: u64) -> bool {
        let layers = &mut self.0;
        unless_panicked(|| layers.add(data, first)).is_some()
    }

    /// Returns the newest group of each place, and the next older group of each group that has one.
    fn groups<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyDict>, Bound<'py, PyDict>)> {
        let (newest, older) = (PyDict::new(py), PyDict::new(py));
        for (place, group) in self.0.newest() {
            newest.set_item(place, group)?;
        }
        for (group, below) in self.0.older() {
            older.set_item(group, below)?;
        }
        Ok((newest, older))
    }

    /// Puts entities over all others, given by their places and what the digest of each place's bucket covers of them;
    /// false if Python must compute the digests from now on. No chunk may be added afterwards.
    fn put(&mut self, places: Vec<u32>, preimages: Vec<PyBackedBytes>) -> bool {
        let layers = &mut self.0;
        let put = || places.iter().zip(&preimages).try_for_each(|(place, own)| layers.put(*place, own));
        unless_panicked(put).is_some()
    }

    /// Returns the number of places, and of the bytes that their digests cover.
    fn size(&self) -> (usize, usize) {
        self.0.size()
    }

    /// Returns each slot of which a bucket changed since the last call, and the digests of its buckets, computed with the
    /// GIL released if they are many; None if Python must compute them.
    fn digests<'py>(&mut self, py: Python<'py>) -> Option<Vec<(u32, Bound<'py, PyBytes>)>> {
        let layers = &mut self.0;
        let unhashed = layers.unhashed();
        let slots = detached_if_long(py, unhashed, || unless_panicked(|| Some(layers.digests())))?;
        Some(slots.iter().map(|(slot, digests)| (*slot, PyBytes::new(py, digests))).collect())
    }
}

/// Returns the stored form of each entity that a chunk holds, by the number of its group and its storage key, and None for
/// the others. None if Python must look for them, because the chunk is damaged.
#[pyfunction]
fn found_in<'py>(
    py: Python<'py>,
    chunk: &[u8],
    groups: Vec<usize>,
    keys: Vec<PyBackedBytes>,
) -> Option<Vec<Option<Bound<'py, PyBytes>>>> {
    let find = || {
        let chunk = chunk::Groups::of(chunk)?;
        groups.iter().zip(&keys).map(|(group, placed)| chunk.find(*group, placed.get(chunk::PLACE_BYTES..)?)).collect()
    };
    let found: Vec<Option<&[u8]>> = unless_panicked(find)?;
    Some(found.iter().map(|each| each.map(|body| PyBytes::new(py, body))).collect())
}

/// Returns the SHA-256 of each span, given by its records, with the GIL released.
#[pyfunction]
fn span_digests<'py>(py: Python<'py>, spans: Vec<Vec<PyBackedBytes>>) -> Vec<Bound<'py, PyBytes>> {
    in_python(py, &py.detach(|| layers::span_digests(&spans)))
}

/// Returns the preimages of buckets with those of some of their entities over them, and their digests, with the GIL
/// released if they are many; None if one is damaged.
#[pyfunction]
fn merged<'py>(
    py: Python<'py>,
    before: Vec<PyBackedBytes>,
    own: Vec<PyBackedBytes>,
) -> Option<(Vec<Bound<'py, PyBytes>>, Vec<Bound<'py, PyBytes>>)> {
    let merge = || before.iter().zip(&own).map(|(before, own)| chunk::merged(before, own)).collect::<Option<Vec<_>>>();
    let merged = detached_if_long(py, own.len(), || unless_panicked(merge))?;
    let (wholes, digests): (Vec<_>, Vec<_>) = merged.into_iter().unzip();
    Some((in_python(py, &wholes), in_python(py, &digests)))
}

/// With fewer items a thread keeps the GIL: to get it back from a thread that runs Python takes 5 ms.
const ITEMS_DETACHED_MIN: usize = 4096;

/// Does some work, with the GIL released if it is long.
fn detached_if_long<T: Send>(py: Python, items: usize, work: impl FnOnce() -> T + Send) -> T {
    if items < ITEMS_DETACHED_MIN { work() } else { py.detach(work) }
}

fn in_python<'py>(py: Python<'py>, each: &[impl AsRef<[u8]>]) -> Vec<Bound<'py, PyBytes>> {
    each.iter().map(|bytes| PyBytes::new(py, bytes.as_ref())).collect()
}

fn python_value<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Value::Null => py.None().into_bound(py),
        Value::Text(text) => text.into_pyobject(py)?.into_any(),
        Value::Bytes(bytes) => PyBytes::new(py, bytes).into_any(),
        Value::Integer(number) => match i64::try_from(*number) {
            Ok(number) => number.into_pyobject(py)?.into_any(),
            Err(_) => number.into_pyobject(py)?.into_any(),
        },
        Value::Float(number) => number.into_pyobject(py)?.into_any(),
        Value::Boolean(truth) => truth.into_pyobject(py)?.to_owned().into_any(),
        Value::List(items) => {
            let list = PyList::empty(py);
            for item in items {
                list.append(python_value(py, item)?)?;
            }
            list.into_any()
        }
        Value::Map(members) => {
            let dict = PyDict::new(py);
            for (key, member) in members {
                dict.set_item(key, python_value(py, member)?)?;
            }
            dict.into_any()
        }
    })
}

static PANICS: AtomicU64 = AtomicU64::new(0);

/// Returns a function's result; None if it panics, which only a defect causes. What it changes must not be used afterwards.
fn unless_panicked<T>(function: impl FnOnce() -> Option<T>) -> Option<T> {
    catch_unwind(AssertUnwindSafe(function)).unwrap_or_else(|_| {
        PANICS.fetch_add(1, Ordering::Relaxed);
        None
    })
}

/// Returns how often the kernel panicked in this process and left the work to Python. Any panic is a defect.
#[pyfunction]
fn panics() -> u64 {
    PANICS.load(Ordering::Relaxed)
}

#[pymodule]
fn refold_kernel(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("FORMAT", FORMAT)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_function(wrap_pyfunction!(panics, module)?)?;
    module.add_function(wrap_pyfunction!(placed, module)?)?;
    module.add_function(wrap_pyfunction!(spans_of, module)?)?;
    module.add_class::<ObservationReader>()?;
    module.add_class::<RecordDecider>()?;
    module.add_class::<DecidedRecords>()?;
    module.add_class::<GroupedRecords>()?;
    module.add_function(wrap_pyfunction!(decided::grouped, module)?)?;
    module.add_function(wrap_pyfunction!(decided::given, module)?)?;
    module.add_function(wrap_pyfunction!(decided::numbered, module)?)?;
    module.add_class::<RecordChecker>()?;
    module.add_function(wrap_pyfunction!(change_heads, module)?)?;
    module.add_class::<SpanObserver>()?;
    module.add_function(wrap_pyfunction!(merged, module)?)?;
    module.add_function(wrap_pyfunction!(span_digests, module)?)?;
    module.add_function(wrap_pyfunction!(found_in, module)?)?;
    module.add_class::<LayerMerger>()?;
    module.add_class::<SpanMerger>()?;
    module.add_class::<BaseWriter>()?;
    module.add_class::<DeltaWriter>()?;
    module.add_class::<TypeFolder>()
}
