"""Calls of an attempt that continues. Each call that ended is durable by itself, and a resumed run is answered with it.

1. A call that ends in an open step is passed to the run's writer. If its step has not ended when the writer makes its
   data durable, some milliseconds later, the call becomes part of the step's field `answered`, under ATTEMPT/PLACE.
   PLACE is its position among the calls of its attempt: numbers with dots between them (recorder/context.py).
2. The end of the attempt writes the whole attempt into `journal`, and clears `answered`: each call is stored once.
3. If the process was killed in between, the field holds the calls that had ended. A resumed run begins the next
   attempt. A call in it with an equal request is answered from the record, each recorded call once. Any further request
   is really made. If the resumed process is killed too, its own calls are stored along with those of the attempts
   before it, and the next resumed run is answered with all of them.
4. A failed attempt leaves nothing in `answered`, neither of itself nor of the attempts before it: the next attempt
   sends its requests again.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from refold.agents.journal.record import Call, Plain
from refold.agents.recorder.step_assembler import PendingCall
from refold.avro.errors import CorruptionError


def answered_key(call: PendingCall) -> str:
    """Return the key of a call in `answered`.

    Raises:
        ValueError: The call is part of another call.
    """
    if call.step_and_attempt is None:
        raise ValueError("a call that is part of another has no position in a step")
    return f"{call.step_and_attempt[1]}/{'.'.join(map(str, call.order))}"


def answered_calls(entity: str, answered: Mapping[str, Plain], attempt: int) -> tuple[Call, ...]:
    """Return the calls of one attempt, in order.

    Args:
        entity: The step's entity, for the error.
        answered: The field `answered`.
        attempt: The number of the attempt.

    Raises:
        CorruptionError: The field was not written by a run.
    """
    found: list[tuple[list[int], Call]] = []
    try:
        for key, tree in answered.items():
            number, _, order = key.partition("/")
            if int(number) == attempt:
                found.append(([int(each) for each in order.split(".")], msgspec.convert(tree, Call)))
    except (msgspec.ValidationError, ValueError) as error:
        raise CorruptionError(
            f"{entity}: its field `answered` holds no valid calls ({error}); it was not written by a run"
        ) from None
    return tuple(call for _, call in sorted(found, key=lambda each: each[0]))
