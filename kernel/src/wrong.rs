//! A kernel that is wrong on purpose, for the tests that must detect it. Only the tests' build has this feature.

use std::env;

use crate::fold::Record;

/// Returns the records as this kernel folds them: REFOLD_KERNEL_WRONG selects the error; without it there is none.
pub fn spoiled<'a>(records: &'a [Record<'a>]) -> &'a [Record<'a>] {
    match env::var("REFOLD_KERNEL_WRONG").as_deref() {
        Ok("loses") if records.len() > 1 => &records[..records.len() - 1],
        Ok("panics") => panic!("as the test wants it"),
        _ => records,
    }
}
