//! The records of a batch, which the kernel keeps until they are folded: Python makes no object of a record it decided.
//!
//! 1. `RecordDecider` decides the fetched records of a partition, and keeps them with their ids: `DecidedRecords`. Those
//!    that Python decided are `given`, and those that the owner of a log appends are `numbered`.
//! 2. `GroupedRecords` groups those of a batch by entity. Python reads the entities' states under its keys.
//! 3. It folds the entities of each type, and returns what the batch changes. If only the timeline shows whether an
//!    entity's records are new, Python reads the timeline, and a second call folds the entity.
//!
//! The records of the entities that are left are returned to Python.

use std::collections::{BTreeMap, HashMap};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};

use crate::decide::{decide, fetched, Fetched};
use crate::fold::{Changed, Outcome, Record, Told};
use crate::layout::Layout;
use crate::parts::in_parts;
use crate::place;
use crate::type_folder::{keep_buffers, FoldedPart, IndexRows, TypeFolder, Unfolded};
use crate::{unless_panicked, ObservationReader};

/// Python's `Record`, read: partition, offset, recorded_at, entity, id, framed bytes.
type ReadParts = (u16, i64, i64, PyBackedStr, [u8; 32], PyBackedBytes);
/// The same, returned.
type RecordParts<'py> = (u16, i64, i64, Bound<'py, PyString>, Bound<'py, PyBytes>, Bound<'py, PyBytes>);

/// Decides the records of one partition, with the readers of the type versions whose records it may accept.
#[pyclass(frozen, module = "refold_kernel")]
pub struct RecordDecider {
    readers: Vec<Py<ObservationReader>>,
    partition: u16,
    partitions: u32,
}

#[pymethods]
impl RecordDecider {
    #[new]
    fn new(readers: Vec<Py<ObservationReader>>, partition: u16, partitions: u32) -> Self {
        RecordDecider { readers, partition, partitions }
    }

    /// Decides the records before the first that has an unusual form, with the GIL released.
    ///
    /// recorded_at: the running maximum of the times of earlier records.
    fn decide(&self, py: Python<'_>, raws: &Bound<PyAny>, recorded_at: i64) -> PyResult<DecidedRecords> {
        let fetched = fetched(raws)?;
        let layouts: Vec<&Layout> = self.readers.iter().map(|reader| &reader.get().layout).collect();
        let (partition, partitions) = (self.partition, self.partitions);
        let decide = |raw| unless_panicked(|| decide(&layouts, partition, partitions, raw));
        let ids: Vec<_> = py.detach(|| fetched.iter().map(decide).collect());
        let mut recorded_at = recorded_at;
        let keep = |(Fetched { offset, timestamp, key, value, .. }, id): (_, Option<_>)| {
            recorded_at = recorded_at.max(timestamp);
            id.map(|id| Decided { partition, offset, recorded_at, entity: Entity::Key(key), id, data: value })
        };
        Ok(DecidedRecords { each: fetched.into_iter().zip(ids).map(keep).collect() })
    }
}

/// A plain observation. recorded_at in milliseconds.
struct Decided {
    partition: u16,
    offset: i64,
    recorded_at: i64,
    entity: Entity,
    id: [u8; 32],
    data: PyBackedBytes,
}

/// An entity's name, as it was given.
enum Entity {
    Key(PyBackedBytes),
    Name(PyBackedStr),
}

impl Entity {
    fn bytes(&self) -> &[u8] {
        match self {
            Entity::Key(key) => key,
            Entity::Name(name) => name.as_bytes(),
        }
    }
}

/// Records in log order; None is one that Python must decide.
#[pyclass(frozen, module = "refold_kernel")]
pub struct DecidedRecords {
    each: Vec<Option<Decided>>,
}

/// Keeps records that Python decided, each the first item of a tuple. None if one has an unusual form.
#[pyfunction]
pub fn given(records: &Bound<PyList>) -> Option<DecidedRecords> {
    let keep = |checked: Bound<PyAny>| {
        let record = checked.cast::<PyTuple>().ok()?.get_item(0).ok()?;
        let (partition, offset, recorded_at, entity, id, data): ReadParts = record.extract().ok()?;
        Some(Some(Decided { partition, offset, recorded_at, entity: Entity::Name(entity), id, data }))
    };
    Some(DecidedRecords { each: records.iter().map(keep).collect::<Option<_>>()? })
}

/// Gives observations that are appended to a log their partitions and offsets, and keeps them. None if one has an unusual
/// form, or a number that Python would refuse.
///
/// Returns the records; their stored rows in the order of the keys, alternating keys and values (streams/table/keys.py);
/// and the next offset of each of their partitions.
///
/// batch: tuples that begin with the entity, the id and the framed bytes. ends: the next offset by partition.
#[pyfunction]
pub fn numbered<'py>(
    py: Python<'py>,
    batch: &Bound<'py, PyList>,
    ends: HashMap<u16, i64>,
    recorded_at: i64,
    partitions: u32,
) -> Option<(DecidedRecords, Bound<'py, PyList>, BTreeMap<u16, i64>)> {
    unless_panicked(|| {
        let mut through = BTreeMap::new();
        let mut each = Vec::with_capacity(batch.len());
        for appended in batch.iter() {
            let appended = appended.cast_into::<PyTuple>().ok()?;
            let entity: PyBackedStr = appended.get_item(0).ok()?.extract().ok()?;
            let id = appended.get_item(1).ok()?.extract().ok()?;
            let data = appended.get_item(2).ok()?.extract().ok()?;
            let partition = u16::try_from(place::partition(&entity, partitions)?).ok()?;
            let end = through.entry(partition).or_insert(*ends.get(&partition)?);
            each.push(Some(Decided { partition, offset: *end, recorded_at, entity: Entity::Name(entity), id, data }));
            *end = end.checked_add(1)?;
        }
        let mut by_key: Vec<&Decided> = each.iter().flatten().collect();
        by_key.sort_by_key(|decided| decided.partition); // stable, and offsets ascend
        let rows = PyList::empty(py);
        for decided in by_key {
            let (key, value) = decided.row()?;
            rows.append(PyBytes::new(py, &key)).ok()?;
            rows.append(PyBytes::new(py, &value)).ok()?;
        }
        Some((DecidedRecords { each }, rows, through))
    })
}

#[pymethods]
impl DecidedRecords {
    fn __len__(&self) -> usize {
        self.each.len()
    }

    /// Whether all of them are plain observations.
    #[getter]
    fn is_plain(&self) -> bool {
        self.each.iter().all(Option::is_some)
    }

    /// The size of the plain observations in bytes.
    #[getter]
    fn size_bytes(&self) -> usize {
        self.each.iter().flatten().map(|each| each.data.len()).sum()
    }

    /// The last plain observation; None without one.
    #[getter]
    fn last<'py>(&self, py: Python<'py>) -> PyResult<Option<RecordParts<'py>>> {
        self.each.iter().flatten().next_back().map(|each| each.parts(py)).transpose()
    }

    /// Returns the parts of each plain observation, and None for each other record.
    fn records<'py>(&self, py: Python<'py>) -> PyResult<Vec<Option<RecordParts<'py>>>> {
        self.each.iter().map(|each| each.as_ref().map(|each| each.parts(py)).transpose()).collect()
    }
}

impl Decided {
    fn parts<'py>(&self, py: Python<'py>) -> PyResult<RecordParts<'py>> {
        let Decided { partition, offset, recorded_at, entity, id, data } = self;
        let entity = PyString::from_bytes(py, entity.bytes())?;
        let data = data.into_pyobject(py)?;
        Ok((*partition, *offset, *recorded_at, entity, PyBytes::new(py, id), data))
    }

    /// Returns the key and the value of its stored row; None if a number is negative, or its entity is too long.
    fn row(&self) -> Option<([u8; 10], Vec<u8>)> {
        let Decided { partition, offset, recorded_at, entity, id, data } = self;
        let mut key = [0; 10];
        key[..2].copy_from_slice(&partition.to_be_bytes());
        key[2..].copy_from_slice(&u64::try_from(*offset).ok()?.to_be_bytes());
        let recorded_at = u64::try_from(*recorded_at).ok()?.to_be_bytes();
        let length = u16::try_from(entity.bytes().len()).ok()?.to_be_bytes();
        let parts: [&[u8]; 5] = [&recorded_at, id, &length, entity.bytes(), data];
        Some((key, parts.concat()))
    }

    fn record(&self) -> Record<'_> {
        let Decided { partition, offset, recorded_at, id, data, .. } = self;
        Record { partition: *partition, offset: *offset, recorded_at: *recorded_at, id, data }
    }
}

/// The observations of a batch, by entity.
#[pyclass(frozen, module = "refold_kernel")]
pub struct GroupedRecords {
    batch: Vec<Py<DecidedRecords>>,
    entities: Entities,
}

/// The entities of a batch, in the order of their first records.
struct Entities {
    /// The storage key of each.
    keys: Vec<Vec<u8>>,
    /// The names of their types, and for each entity the index of its type.
    types: Vec<String>,
    type_of: Vec<usize>,
    /// The records of all, by entity and in log order: indexes in the batch, and in its parts.
    records: Vec<(usize, usize)>,
    /// Where each entity's records begin, and where the last one's end.
    starts: Vec<usize>,
}

impl Entities {
    /// Groups the observations of a batch.
    fn of(batch: &[&DecidedRecords]) -> Self {
        let places = batch.iter().enumerate().flat_map(|(part, decided)| (0..decided.each.len()).map(move |at| (part, at)));
        let each: Vec<(&Decided, (usize, usize))> =
            places.filter_map(|(part, at)| Some((batch[part].each[at].as_ref()?, (part, at)))).collect();
        let mut index: HashMap<&[u8], usize> = HashMap::with_capacity(each.len());
        let (mut names, mut counts): (Vec<&[u8]>, Vec<usize>) = (Vec::new(), Vec::new());
        let mut entity_of = Vec::with_capacity(each.len());
        for (decided, _) in &each {
            let entity = *index.entry(decided.entity.bytes()).or_insert_with(|| {
                names.push(decided.entity.bytes());
                counts.push(0);
                names.len() - 1
            });
            counts[entity] += 1;
            entity_of.push(entity);
        }
        let mut starts = vec![0];
        starts.extend(counts.iter().scan(0, |end, count| {
            *end += count;
            Some(*end)
        }));
        let mut ahead = starts.clone();
        let mut records = vec![(0, 0); each.len()];
        for ((_, place), entity) in each.iter().zip(entity_of) {
            records[ahead[entity]] = *place;
            ahead[entity] += 1;
        }
        let mut types: Vec<String> = Vec::new();
        let type_of = names.iter().map(|name| {
            let name = name.split(|byte| *byte == b'/').next().unwrap_or_default();
            types.iter().position(|each| each.as_bytes() == name).unwrap_or_else(|| {
                types.push(String::from_utf8_lossy(name).into_owned());
                types.len() - 1
            })
        });
        let type_of = type_of.collect();
        let keys = in_parts(&names, |part| part.iter().map(|name| place::placed(name)).collect::<Vec<_>>()).concat();
        Entities { keys, types, type_of, records, starts }
    }

    fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns the records of all, by entity.
    fn decided<'a>(&self, batch: &[&'a DecidedRecords]) -> Vec<&'a Decided> {
        self.records.iter().filter_map(|(part, at)| batch[*part].each[*at].as_ref()).collect()
    }

    /// Returns for each entity the index of its partition in `ends`; None if one is not there.
    fn ends_of(&self, decided: &[&Decided], ends: &[(u16, i64)]) -> Option<Vec<usize>> {
        let firsts = &self.starts[..self.len()];
        firsts.iter().map(|first| ends.iter().position(|(each, _)| *each == decided[*first].partition)).collect()
    }
}

/// What a batch changes.
struct FoldedGroups {
    parts: Vec<FoldedPart>,
    /// For each entity, the part that has its changes.
    changed: Vec<Option<(usize, Changed)>>,
    /// The entities that changed, in the order of their keys.
    by_key: Vec<usize>,
    /// The entities that are not folded.
    left: Vec<usize>,
    /// Those of them that are folded once the timeline has told of some of their records: the indexes and keys of these.
    doubtful: Vec<(usize, Vec<(usize, Vec<u8>)>)>,
    /// The number of records that were folded, or known.
    records: usize,
}

/// Groups the observations of a batch, with the GIL released. Returns None if that panicked.
#[pyfunction]
pub fn grouped(py: Python<'_>, batch: Vec<Py<DecidedRecords>>) -> Option<GroupedRecords> {
    let decided: Vec<&DecidedRecords> = batch.iter().map(Py::get).collect();
    let entities = py.detach(|| unless_panicked(|| Some(Entities::of(&decided))))?;
    Some(GroupedRecords { batch, entities })
}

#[pymethods]
impl GroupedRecords {
    /// The names of the types of the entities.
    #[getter]
    fn types(&self) -> &[String] {
        &self.entities.types
    }

    /// Returns the storage keys of the entities' states, in the order of their first records.
    fn keys<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyBytes>> {
        self.entities.keys.iter().map(|key| PyBytes::new(py, key)).collect()
    }

    /// Returns the records of some entities, by the indexes of these.
    fn records<'py>(&self, py: Python<'py>, entities: Vec<usize>) -> PyResult<Vec<Vec<RecordParts<'py>>>> {
        let Entities { records, starts, .. } = &self.entities;
        let all_of = |entity: usize| {
            let (Some(start), Some(end)) = (starts.get(entity), starts.get(entity + 1)) else {
                return Err(PyValueError::new_err("there is no such entity"));
            };
            let parts = records[*start..*end].iter().filter_map(|(part, at)| {
                self.batch[*part].get().each[*at].as_ref().map(|each| each.parts(py))
            });
            parts.collect()
        };
        entities.into_iter().map(all_of).collect()
    }

    /// Folds the entities, with the GIL released. Returns None if that panicked.
    ///
    /// Returns the rows of the states, the timeline, the arrivals, the ids and the checkpoints, sorted by key: lists of
    /// alternating keys and values; for the ids, of keys only. Then for each partition of `through`: (key, state, change)
    /// of each entity that changed, in the order of their first records; how many entities are new, how many
    /// observations, and how many of these were late. Then the indexes of the entities that are not folded; of these,
    /// those that the timeline must be asked about, each with the indexes and keys of the records; and the number of
    /// records of the folded ones.
    ///
    /// folders: that of each of `types`, or None. keys: as `keys` returned them. stored: the states under these keys.
    /// through: the batch's next offset, by partition. told: only these entities are folded, with what the timeline told
    /// of their records; None: all of them, and it was not asked.
    fn fold<'py>(
        &self,
        py: Python<'py>,
        folders: Vec<Option<Py<TypeFolder>>>,
        keys: &Bound<'py, PyList>,
        stored: Vec<Option<PyBackedBytes>>,
        through: &Bound<'py, PyDict>,
        told: Option<HashMap<usize, Told>>,
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let count = self.entities.len();
        if keys.len() != count || stored.len() != count || folders.len() != self.entities.types.len() {
            return Err(PyValueError::new_err("there is one key and one state for each entity, and one folder for each type"));
        }
        let ends: Vec<(u16, i64)> = through.iter().map(|(key, end)| Ok((key.extract()?, end.extract()?))).collect::<PyResult<_>>()?;
        let batch: Vec<&DecidedRecords> = self.batch.iter().map(Py::get).collect();
        let folders: Vec<Option<&TypeFolder>> = folders.iter().map(|folder| folder.as_ref().map(Py::get)).collect();
        let decided = self.entities.decided(&batch);
        let ends_of = self.entities.ends_of(&decided, &ends).ok_or_else(|| PyValueError::new_err("through has each partition"))?;
        let fold = || unless_panicked(|| Some(self.folded(&decided, &folders, &stored, &ends, &ends_of, told.as_ref())));
        let Some(folded) = py.detach(fold) else { return Ok(None) };
        let Some(rows) = py.detach(|| unless_panicked(|| Some(IndexRows::of(&folded.parts)))) else { return Ok(None) };
        let bytes = |(part, span): (usize, _)| PyBytes::new(py, folded.parts[part].rows.get(span));
        let mut states = vec![None; count];
        let mut outcomes: Vec<_> = ends.iter().map(|_| (PyList::empty(py), (0, 0, 0))).collect();
        for (entity, found) in folded.changed.iter().enumerate() {
            let Some((part, changed)) = found else { continue };
            let state = bytes((*part, changed.state));
            let (changes, (new, steps, late)) = &mut outcomes[ends_of[entity]];
            changes.append((keys.get_item(entity)?, &state, bytes((*part, changed.change))))?;
            states[entity] = Some(state);
            *new += usize::from(changed.version_before == 0);
            *steps += changed.steps;
            *late += changed.late;
        }
        let state_rows = PyList::empty(py);
        for entity in &folded.by_key {
            state_rows.append(keys.get_item(*entity)?)?;
            state_rows.append(&states[*entity])?;
        }
        let (timeline, arrivals, ids, checkpoints) = rows.in_python(py);
        let asked = |(entity, records): &(usize, Vec<(usize, Vec<u8>)>)| {
            (*entity, records.iter().map(|(place, key)| (*place, PyBytes::new(py, key))).collect::<Vec<_>>())
        };
        let doubtful: Vec<_> = folded.doubtful.iter().map(asked).collect();
        let rows_listed = (state_rows, timeline, arrivals, ids, checkpoints);
        let found = (rows_listed, outcomes, &folded.left, doubtful, folded.records).into_pyobject(py).map(Some);
        drop(rows);
        keep_buffers(folded.parts);
        found
    }
}

impl GroupedRecords {
    fn folded(
        &self,
        decided: &[&Decided],
        folders: &[Option<&TypeFolder>],
        stored: &[Option<PyBackedBytes>],
        ends: &[(u16, i64)],
        ends_of: &[usize],
        told: Option<&HashMap<usize, Told>>,
    ) -> FoldedGroups {
        let Entities { keys, type_of, starts, .. } = &self.entities;
        let records: Vec<Record> = decided.iter().map(|each| each.record()).collect();
        let nothing = Told::new();
        let (mut parts, mut changed) = (Vec::new(), Vec::new());
        changed.resize_with(keys.len(), || None);
        let (mut left, mut doubtful, mut count) = (Vec::new(), Vec::new(), 0);
        for (number, folder) in folders.iter().enumerate() {
            let is_asked = |entity: &usize| told.is_none_or(|told| told.contains_key(entity));
            let of_type = (0..keys.len()).filter(|entity| type_of[*entity] == number).filter(is_asked);
            let Some(folder) = folder else {
                left.extend(of_type);
                continue;
            };
            let entities: Vec<usize> = of_type.collect();
            let given: Vec<Unfolded> = entities
                .iter()
                .map(|entity| {
                    let own = starts[*entity]..starts[entity + 1];
                    let name = std::str::from_utf8(decided[own.start].entity.bytes()).unwrap_or_default();
                    let told = told.and_then(|told| told.get(entity)).unwrap_or(&nothing);
                    (name, stored[*entity].as_deref(), ends[ends_of[*entity]].1, &records[own], told)
                })
                .collect();
            let mut ahead = entities.iter().zip(&given);
            for mut part in in_parts(&given, |some| FoldedPart::of(&folder.layout, &folder.definition, some)) {
                for (outcome, (entity, unfolded)) in part.outcomes.drain(..).zip(&mut ahead) {
                    match outcome {
                        Some(Outcome::Folded(found)) => {
                            changed[*entity] = found.map(|found| (parts.len(), found));
                            count += unfolded.3.len();
                        }
                        Some(Outcome::Doubtful(records)) => {
                            left.push(*entity);
                            doubtful.push((*entity, records));
                        }
                        None => left.push(*entity),
                    }
                }
                parts.push(part);
            }
        }
        left.sort_unstable();
        let mut by_key: Vec<usize> = (0..keys.len()).filter(|entity| changed[*entity].is_some()).collect();
        by_key.sort_unstable_by_key(|entity| &keys[*entity]);
        FoldedGroups { parts, changed, by_key, left, doubtful, records: count }
    }
}
