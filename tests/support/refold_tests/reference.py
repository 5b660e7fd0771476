"""The naive reference that folds are compared with, under one name: this is what tests import.

It shares nothing with `refold.reducers`; from `refold.avro` it takes the form of an observation and its id.
"""

from __future__ import annotations

from refold_tests.reference_cbor import canonical, canonical_number, encode
from refold_tests.reference_conflicts import reference_conflicts
from refold_tests.reference_fold import (
    Assertion,
    Definition,
    FieldSpec,
    Log,
    State,
    exact_sum,
    reference_hash,
    reference_state,
    reference_states,
    reference_true_at,
)
from refold_tests.reference_mutations import (
    Mutation,
    Replayed,
    apply_mutations,
    reference_difference,
    reference_mutations,
    replayed_fields,
    replayed_links,
)
from refold_tests.reference_root import murmur2, reference_root, reference_slot

__all__ = [
    "Assertion",
    "Definition",
    "FieldSpec",
    "Log",
    "Mutation",
    "Replayed",
    "State",
    "apply_mutations",
    "canonical",
    "canonical_number",
    "encode",
    "exact_sum",
    "murmur2",
    "reference_conflicts",
    "reference_difference",
    "reference_hash",
    "reference_mutations",
    "reference_root",
    "reference_slot",
    "reference_state",
    "reference_states",
    "reference_true_at",
    "replayed_fields",
    "replayed_links",
]
