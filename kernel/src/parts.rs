//! Works on parts of a batch at the same time. The results are those of one thread, in the same order.

use std::panic::resume_unwind;
use std::sync::OnceLock;
use std::thread::{self, available_parallelism, Builder};

/// More parts would gain little: what Python does before and after is not divided.
const PARTS_MAX: usize = 4;
/// With fewer items a thread would save little more than its start takes.
const ITEMS_MIN: usize = 1024;

/// Returns the results of the work on consecutive parts of some items. One part is done by the caller's thread.
pub fn in_parts<T: Sync, R: Send>(items: &[T], work: impl Fn(&[T]) -> R + Sync) -> Vec<R> {
    let parts = (items.len() / ITEMS_MIN).min(processors()).clamp(1, PARTS_MAX);
    let (own, others) = items.split_at(items.len().div_ceil(parts));
    if others.is_empty() {
        return vec![work(own)];
    }
    let work = &work;
    thread::scope(|scope| {
        let begin = |part| (part, Builder::new().spawn_scoped(scope, move || work(part)));
        let begun: Vec<_> = others.chunks(own.len()).map(begin).collect();
        let mut results = vec![work(own)];
        results.extend(begun.into_iter().map(|(part, thread)| match thread {
            Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
            Err(_) => work(part), // the system starts no more threads
        }));
        results
    })
}

fn processors() -> usize {
    static FOUND: OnceLock<usize> = OnceLock::new();
    *FOUND.get_or_init(|| available_parallelism().map_or(1, usize::from))
}

#[cfg(test)]
mod tests {
    use super::in_parts;

    #[test]
    fn results_are_in_order() {
        for count in [0, 1, 1023, 1024, 2048, 2049, 4095, 20_000] {
            let items: Vec<usize> = (0..count).collect();
            let parts = in_parts(&items, |part| part.to_vec());
            assert_eq!(parts.concat(), items);
        }
    }
}
