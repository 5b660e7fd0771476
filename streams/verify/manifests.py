"""What a manifest says of itself and of the log, without the records it names.

1. It can be read: its checksum, and its own epoch, log and fold.
2. `types` are the definitions below its offset of `.schemas`; `recorded_at` is that of the record before its offset;
   `deadletters` is no more than there are.
3. A delta that stands on the manifest before it has that one's ranges, its closed entities and its `previous`. The one
   before may be gone; then a delta still names one.
4. Its slots are the partition's, and its root is the root over them.
"""

from __future__ import annotations

from collections.abc import Iterator

from refold.streams.cut import FOLD_VERSION
from refold.streams.digest import root_over
from refold.streams.log.port import LogPort, Mismatch
from refold.streams.partition import slots_of
from refold.streams.snapshots.manifest import Manifest


def place_of_manifest(manifest: Manifest) -> str:
    """How mismatches name it."""
    return f"manifests {manifest.epoch}"


def check_manifest(log: LogPort, manifest: Manifest, before: Manifest | None, deadletters: int) -> Iterator[Mismatch]:
    """before: the readable manifest in front of it; deadletters: the partition's next offset of them."""
    problems = [*_alone(log, manifest, deadletters), *_chain(manifest, before)]
    return (Mismatch(place_of_manifest(manifest), problem) for problem in problems)


def follows(manifest: Manifest, before: Manifest | None) -> bool:
    """Whether it is a delta whose ranges begin with those of another epoch."""
    if before is None or manifest.is_base:
        return False
    return manifest.ranges[: len(before.ranges)] == before.ranges and len(manifest.ranges) > len(before.ranges)


def _alone(log: LogPort, manifest: Manifest, deadletters: int) -> Iterator[str]:
    partition, offset, schemas = manifest.epoch
    if manifest.log_id != log.log_id:
        yield f"of another log, {manifest.log_id.hex()}"
    if manifest.fold_version != FOLD_VERSION:
        yield f"folded by fold version {manifest.fold_version}; this release folds by {FOLD_VERSION}"
    if dict(manifest.types) != log.registry.fingerprints(schemas):
        yield f"its types are not those registered below {schemas}"
    if log.recorded_below(partition, offset) != manifest.recorded_at:
        yield f"its recorded_at is not that of the record {partition}={offset - 1}"
    if manifest.deadletters > deadletters:
        yield f"counts {manifest.deadletters} dead letters; the log has {deadletters} there"
    slots = slots_of(partition, log.partitions)
    if len(manifest.slots) != len(slots):
        yield f"has {len(manifest.slots)} slots; the partition has {len(slots)}"
    elif manifest.root != root_over(dict(zip(slots, manifest.slots, strict=True)), manifest.entities):
        yield "its root is not the root over its slots"
    if any(span.start > span.end for span in manifest.spans):
        yield "has a span that ends before it begins"
    if not manifest.ranges or any(
        one.end > two.start for one, two in zip(manifest.ranges, manifest.ranges[1:], strict=False)
    ):
        yield "its ranges do not follow one another"
    if bool(manifest.cold) != bool(manifest.buckets) or bool(manifest.cold) != bool(manifest.index):
        yield "names closed entities without their index and buckets, or these without closed entities"


def _chain(manifest: Manifest, before: Manifest | None) -> Iterator[str]:
    if manifest.is_base:
        if manifest.changed:
            yield f"a base, and counts {manifest.changed} changed entities"
        return
    if not manifest.previous:
        yield "a delta, and names no manifest before it"
    if before is None or not follows(manifest, before):
        return
    if (manifest.warm, manifest.cold, manifest.index, manifest.buckets) != (
        before.warm, before.cold, before.index, before.buckets
    ):  # fmt: skip
        yield f"a delta onto the epoch {before.epoch}, and has another base or other closed entities"
    if len(manifest.ranges) == len(before.ranges) + 1 and manifest.previous != before.digest:
        yield f"`previous` is not the digest of the manifest {before.epoch}, onto which it is a delta"
