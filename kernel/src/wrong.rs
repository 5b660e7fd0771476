//! A kernel that is wrong on purpose, for the tests that have to find it. No build but theirs has the feature.

use std::env;

use crate::fold::Record;

/// The records as this kernel takes them: REFOLD_KERNEL_WRONG says what is wrong, and nothing is where it is not set.
pub fn spoiled<'a>(records: &'a [Record<'a>]) -> &'a [Record<'a>] {
    match env::var("REFOLD_KERNEL_WRONG").as_deref() {
        Ok("loses") if records.len() > 1 => &records[..records.len() - 1],
        Ok("panics") => panic!("as the test wants it"),
        _ => records,
    }
}
