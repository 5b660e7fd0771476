"""How much of a table is written at a time, so that a fold and its readers never wait long."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TableLimits:
    """Limits that change how often a table is written, but never what is stored.

    Attributes:
        indexed_records: The number of records whose missing index rows are written under one lock.
        refolded_entities: The number of entities that one write or commit folds again by a new definition.
    """

    indexed_records: int = 500
    refolded_entities: int = 500


DEFAULT_TABLE_LIMITS = TableLimits()
