"""Answer look-ups in this worker's tables (streams/log/kafka/lookups.py)."""

from __future__ import annotations

from typing import Any

import cbor2

from refold.avro.errors import InputError
from refold.streams.log.kafka.lookups import asked
from refold.streams.worker.tables import OwnTables


def answer_lookup(tables: OwnTables, content: bytes) -> bytes:
    """Return the answer to a question, both in CBOR. InputError if it is invalid; StorageError as OwnTables."""
    name, arguments = asked(content)
    try:
        return cbor2.dumps(_answer(tables, name, arguments))
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise InputError(f"the look-up {name!r:.40} has invalid arguments: {error}") from error


def _answer(tables: OwnTables, name: str, given: list[Any]) -> Any:
    match name:
        case "arrivals":
            arrived = tables.arrivals(*given)
            return None if arrived is None else [arrived.through, [list(each) for each in arrived.arrivals]]
        case "records":
            held = tables.records_of(*given)
            return None if held is None else [held.through, [each and list(each) for each in held.records]]
        case "checkpoint":
            row = tables.checkpoint_row(*given)
            return None if row is None else list(row)
        case "places":
            found = tables.places_of(*given)
            return [[list(each) for each in found.places], dict(found.through)]
        case "rows":
            return [list(each) for each in tables.rows(*given)]
        case "totals":
            return list(tables.totals(*given))
    raise InputError(f"the look-up {name!r:.40} is not known to this release")
