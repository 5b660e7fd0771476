//! The properties. Each case draws numbers, of which drawn.rs makes histories and damage.

use std::collections::BTreeMap;

use proptest::prelude::*;
use sha2::{Digest, Sha256};

use crate::chunk::{merged, BaseWriter, DeltaWriter};
use crate::drawn::{damage, layout, observation, Choices, ENTITY};
use crate::fold::{fold, replay, Outcome, Record, Told};
use crate::rows::Rows;
use crate::layout::{Definition, Layout, FRAME_BYTES};
use crate::observation::Observation;
use crate::state::State;

const DEFINITION: Definition = Definition { fingerprint: [3; 32], change_frame: [0, 0, 0, 0, 9], offset: 1 };

/// A history: for each record its id and its framed bytes.
type History = Vec<(Vec<u8>, Vec<u8>)>;

fn history(layout: &Layout, choices: &mut Choices, damages: bool) -> History {
    let count = 1 + choices.below(8);
    let mut found: History = Vec::new();
    for number in 0..count {
        let mut data = observation(layout, number + 1, choices);
        if damages && choices.below(3) == 0 {
            damage(&mut data, FRAME_BYTES, choices);
        }
        let id = Observation::read(layout, &data, true).map_or_else(|| vec![7; 32], |read| read.id(layout).to_vec());
        found.push((id, data));
        if choices.below(6) == 0 {
            let again = choices.below(found.len());
            found.push(found[again].clone());
        }
    }
    found
}

fn records<'a>(history: &'a [(Vec<u8>, Vec<u8>)], first: usize) -> Vec<Record<'a>> {
    let record = |(number, (id, data)): (usize, &'a (Vec<u8>, Vec<u8>))| {
        let offset = (first + number) as i64;
        Record { partition: 0, offset, recorded_at: offset, id, data }
    };
    history.iter().enumerate().map(record).collect()
}

/// Folds records, and tells of every doubtful one that it is new; None if Python folds them.
fn folded(layout: &Layout, packed: Option<&[u8]>, records: &[Record]) -> Option<Option<Vec<u8>>> {
    let through = records.last()?.offset + 1;
    let mut rows = Rows::default();
    let mut found = fold(layout, &DEFINITION, ENTITY, packed, records, through, &Told::new(), &mut rows)?;
    if let Outcome::Doubtful(asked) = found {
        let told = asked.iter().map(|(place, _)| (*place, false)).collect();
        found = fold(layout, &DEFINITION, ENTITY, packed, records, through, &told, &mut rows)?;
    }
    match found {
        Outcome::Folded(changed) => Some(changed.map(|changed| rows.get(changed.state).to_vec())),
        Outcome::Doubtful(_) => None,
    }
}

fn numbers() -> impl Strategy<Value = Vec<u16>> {
    proptest::collection::vec(any::<u16>(), 0..160)
}

proptest! {
    #[test]
    fn damaged_records_are_folded_or_left(given in numbers()) {
        let layout = layout();
        let history = history(&layout, &mut Choices::new(&given), true);
        let records = records(&history, 0);
        let state = folded(&layout, None, &records);
        if let (Some(Some(state)), Some(replayed)) = (&state, replay(&layout, ENTITY, None, &records)) {
            prop_assert_eq!(Some(state), replayed.state.as_ref(), "a rebuild has another state");
        }
    }

    #[test]
    fn batches_do_not_change_a_state(given in numbers()) {
        let layout = layout();
        let mut choices = Choices::new(&given);
        let history = history(&layout, &mut choices, false);
        let split = choices.below(history.len() + 1);
        let whole = replay(&layout, ENTITY, None, &records(&history, 0));
        let first = replay(&layout, ENTITY, None, &records(&history[..split], 0));
        if let (Some(whole), Some(first)) = (whole, first) {
            let rest = records(&history[split..], split);
            if let Some(second) = replay(&layout, ENTITY, first.state.as_deref(), &rest) {
                prop_assert_eq!(whole.steps, first.steps + second.steps);
                prop_assert_eq!(whole.state, second.state.or(first.state));
            }
        }
    }

    #[test]
    fn damaged_states_are_folded_or_left(given in numbers()) {
        let layout = layout();
        let mut choices = Choices::new(&given);
        let history = history(&layout, &mut choices, false);
        let split = 1 + choices.below(history.len());
        let Some(Some(mut packed)) = folded(&layout, None, &records(&history[..split], 0)) else {
            return Ok(());
        };
        let read = State::read(&layout, &packed).expect("the kernel reads what it wrote");
        let hash: [u8; 32] = read.hash.and_then(|hash| hash.try_into().ok()).expect("a stored state has its hash");
        let mut written = Vec::new();
        read.pack(&layout, &hash, &mut written);
        prop_assert_eq!(&written, &packed, "a state is written as it was read");
        prop_assert_eq!(read.hash_now(&layout, ENTITY), Some(hash));
        damage(&mut packed, 0, &mut choices);
        let rest = records(&history[split - 1..], split);
        folded(&layout, Some(&packed), &rest);
        replay(&layout, ENTITY, Some(&packed), &rest);
    }

    #[test]
    fn any_bytes_are_read_or_left(mut data in proptest::collection::vec(any::<u8>(), 0..200), is_checked: bool) {
        let layout = layout();
        State::read(&layout, &data);
        Observation::read(&layout, &data, is_checked);
        let frame = FRAME_BYTES.min(data.len());
        data[..frame].copy_from_slice(&layout.frame[..frame]);
        if let Some(read) = Observation::read(&layout, &data, is_checked) {
            read.id(&layout);
        }
    }

    #[test]
    fn buckets_are_merged_by_key(before in members(), own in members()) {
        let (one, other) = (preimage(&before), preimage(&own));
        let (whole, digest) = merged(&one, &other).expect("these are preimages");
        let both: BTreeMap<_, _> = before.into_iter().chain(own).collect();
        prop_assert_eq!(&whole, &preimage(&both));
        let expected: [u8; 32] = Sha256::digest(&whole).into();
        prop_assert_eq!(digest, expected);
    }

    #[test]
    fn damaged_rows_are_written_or_left(given in numbers(), limit in 1usize..2_000, is_whole: bool) {
        let mut choices = Choices::new(&given);
        let mut rows: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        for number in 0..choices.below(20) {
            let place = [0, number as u8 / 4, choices.below(2) as u8];
            let mut state = vec![0x9e, 3, 1, 0xc4, 0x20];
            state.extend([number as u8; 32]);
            state.extend([choices.below(0x80) as u8, 0x80]);
            if choices.below(12) == 0 {
                damage(&mut state, 0, &mut choices);
            }
            rows.push(([place.as_slice(), b"thing/", &[number as u8]].concat(), state));
        }
        if choices.below(4) > 0 {
            rows.sort();
        }
        let mut base = BaseWriter::new(limit);
        if rows.iter().all(|(key, state)| base.add(key, state).is_some()) {
            base.end();
        }
        let given: Vec<(&[u8], &[u8])> = rows.iter().map(|(key, state)| (key.as_slice(), state.as_slice())).collect();
        let mut delta = DeltaWriter::new(limit, choices.below(0x80) as u64, is_whole);
        if let Some(added) = delta.add(&given) {
            let (_, entities) = delta.end().expect("all rows were taken");
            prop_assert!(entities <= rows.len());
            prop_assert_eq!(added.places.len(), added.preimages.len());
        }
        let cut = choices.below(40);
        merged(&rows.iter().flat_map(|(_, state)| state.clone()).take(cut).collect::<Vec<_>>(), &[]);
    }
}

fn members() -> impl Strategy<Value = BTreeMap<Vec<u8>, [u8; 32]>> {
    proptest::collection::btree_map(proptest::collection::vec(0u8..4, 0..4), any::<[u8; 32]>(), 0..6)
}

fn preimage(members: &BTreeMap<Vec<u8>, [u8; 32]>) -> Vec<u8> {
    let part = |(key, hash): (&Vec<u8>, &[u8; 32])| [&(key.len() as u32).to_be_bytes(), key.as_slice(), hash].concat();
    members.iter().flat_map(part).collect()
}
