//! Merges the spans of an epoch, which are sorted by place, to the chunks of a base: streams/snapshots/base_merge.py.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use sha2::{Digest, Sha256};

use crate::chunk::{BaseWriter, Groups, DIGEST_BYTES};

/// A span, of which one chunk is open. group: the number of its next group.
struct Span<C> {
    chunk: Option<C>,
    group: usize,
    has_ended: bool,
    digest: Sha256,
}

/// Merges spans, the latest first. C: a chunk's bytes.
pub struct SpanMerger<C> {
    spans: Vec<Span<C>>,
    writer: BaseWriter,
    placed: Vec<u8>,
}

/// What is left at the end: the last chunk, if any, the number of entities, the digests of the buckets of each slot that
/// has one, and the digest of each span.
pub struct Merged {
    pub last: Option<Vec<u8>>,
    pub entities: usize,
    pub slots: Vec<(u32, Vec<u8>)>,
    pub spans: Vec<[u8; DIGEST_BYTES]>,
}

impl<C: AsRef<[u8]>> SpanMerger<C> {
    pub fn new(limit: usize, spans: usize) -> Self {
        let span = |_| Span { chunk: None, group: 0, has_ended: false, digest: Sha256::new() };
        SpanMerger { spans: (0..spans).map(span).collect(), writer: BaseWriter::new(limit), placed: Vec::new() }
    }

    /// Takes the next chunk of some spans, None for one that has ended. Returns the chunks of the base that are full, and the
    /// spans of which the next chunk is needed; None if a chunk is damaged.
    pub fn add(&mut self, given: Vec<(usize, Option<C>)>) -> Option<(Vec<Vec<u8>>, Vec<usize>)> {
        for (number, chunk) in given {
            let span = self.spans.get_mut(number)?;
            if let Some(chunk) = &chunk {
                span.digest.update(chunk);
            }
            span.has_ended = chunk.is_none();
            (span.chunk, span.group) = (chunk, 0);
        }
        let open = self.spans.iter().map(|span| match &span.chunk {
            Some(chunk) => Groups::of(chunk.as_ref()).map(Some),
            None => Some(None),
        });
        let open: Vec<Option<Groups>> = open.collect::<Option<_>>()?;
        let mut at: Vec<usize> = self.spans.iter().map(|span| span.group).collect();
        let mut next = BinaryHeap::new();
        let mut needed = Vec::new();
        for (number, groups) in open.iter().enumerate() {
            match groups.as_ref().filter(|groups| at[number] < groups.len()) {
                Some(groups) => next.push(Reverse((groups.get(at[number])?.0, number))),
                None if !self.spans[number].has_ended => needed.push(number),
                None => {}
            }
        }
        let mut full = Vec::new();
        while needed.is_empty() {
            let Some(Reverse((place, first))) = next.pop() else { break };
            let mut numbers = vec![first];
            while let Some(Reverse((_, number))) = next.peek().filter(|Reverse((other, _))| *other == place) {
                numbers.push(*number);
                next.pop();
            }
            let members = match numbers.as_slice() {
                [number] => open[*number].as_ref()?.members(at[*number])?,
                _ => {
                    let mut newest = BTreeMap::new();
                    for number in numbers.iter().rev() {
                        newest.extend(open[*number].as_ref()?.members(at[*number])?);
                    }
                    newest.into_iter().collect()
                }
            };
            for (key, state) in members {
                self.placed.clear();
                self.placed.extend(place.to_be_bytes().strip_prefix(&[0])?);
                self.placed.extend(key);
                full.extend(self.writer.add(&self.placed, state)?);
            }
            for number in numbers {
                let groups = open[number].as_ref()?;
                at[number] += 1;
                if at[number] < groups.len() {
                    next.push(Reverse((groups.get(at[number])?.0, number)));
                } else {
                    needed.push(number);
                }
            }
        }
        for (span, at) in self.spans.iter_mut().zip(at) {
            span.group = at;
        }
        Some((full, needed))
    }

    /// Ends the base; None if a span has not ended.
    pub fn end(&mut self) -> Option<Merged> {
        if self.spans.iter().any(|span| !span.has_ended) {
            return None;
        }
        let ended = self.writer.end()?;
        let digest = |span: &mut Span<C>| span.digest.finalize_reset().into();
        Some(Merged {
            last: ended.last,
            entities: ended.entities,
            slots: ended.slots.into_iter().map(|(number, slot)| (number, slot.digests)).collect(),
            spans: self.spans.iter_mut().map(digest).collect(),
        })
    }
}
