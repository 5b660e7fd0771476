"""Bodies of requests that repeat earlier ones: each part of a conversation is stored once in a run.

A model's client sends the whole conversation in each request. Stored whole, a run would grow with the square of its
turns. In an observation a body may therefore be

    {"after": [STEP, CALL], "parts": [PART, ...]}     PART: a text, or [BEGIN, END] of the body of that call

STEP is an earlier step of the same run, CALL the position of a call in its last attempt, from 0; BEGIN and END count
characters. The joined parts are the body, to the byte. Recordings have whole bodies: hashes, comparisons and replays do
not depend on this.

1. A writer remembers the bodies of the last REMEMBERED calls whose steps ended. A process that resumes a run remembers
   none, so its first body is stored whole.
2. A body is compared with each of them, block by block from both ends. The one with most in common is used.
3. The rest between is cut where one JSON object follows another. A piece that the earlier body also has, in any
   position, becomes a reference; adjacent references are merged. So cache marks that move, and a system prompt with a
   date, cost only their own piece.
4. If that saves less than half, the body is stored whole. So is a short body.
5. A reader reads a run's steps in order, and restores each body from those before it.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterator

from msgspec.structs import replace

from refold.agents.journal.record import Attempt, Call, Plain, Step
from refold.avro.errors import CorruptionError

BYTES_MIN = 1024
REMEMBERED = 4
_PIECE_MIN = 48
_BLOCK = 1 << 14
_BETWEEN_OBJECTS = re.compile(r"(?<=\},)\s?(?=\{)|(?<=\})\s?(?=\])")
_Part = str | list[int]


class BodyWriter:
    """Shortens the bodies of one run's calls. Not thread-safe."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[int, int], str] = OrderedDict()

    def shortened(self, call: Call) -> Call:
        """Return the call as it is stored; the call itself if nothing is saved."""
        body = _body_of(call)
        if body is None:
            return call
        if not self._known:
            return call
        found = ((_common(base, body), place) for place, base in self._known.items())
        (begin, end), place = max(found, key=lambda each: sum(each[0]))
        parts = list(_parts_of(self._known[place], body, begin, end))
        if sum(len(each) if isinstance(each, str) else 2 for each in parts) * 2 > len(body):
            return call
        stored = {**call.asked.request, "body": {"after": list(place), "parts": parts}}
        return replace(call, asked=replace(call.asked, request=stored))

    def ended(self, step: Step) -> None:
        """Remember the bodies of a step that ended, so that later bodies can refer to them."""
        for place, body in _bodies(step):
            self._known[place] = body
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)


class BodyReader:
    """Restores the bodies of one run. The steps must be read in order.

    Args:
        keeps_unknown: Whether a body that continues an unknown one stays as it is stored, instead of an error. Used by
            readers of a part of a run. `unknown` counts these bodies.
    """

    def __init__(self, *, keeps_unknown: bool = False) -> None:
        self._known: dict[tuple[int, int], str] = {}
        self._keeps_unknown = keeps_unknown
        self.unknown = 0

    def whole(self, entity: str, attempt: Attempt) -> Attempt:
        """Return an attempt with whole bodies.

        Args:
            entity: The step's entity, for the error.
            attempt: The attempt as it is stored.

        Raises:
            CorruptionError: A body refers to an earlier one that is missing.
        """
        if not any(map(_is_short, attempt.calls)):
            return attempt
        return replace(attempt, calls=tuple(self._whole_call(entity, each) for each in attempt.calls))

    def ended(self, step: Step) -> None:
        """Remember the bodies of a step that was read, because later ones may refer to them."""
        self._known.update(_bodies(step))

    def _whole_call(self, entity: str, call: Call) -> Call:
        if not _is_short(call):
            return call
        request = call.asked.request
        try:
            step, index = request["body"]["after"]
            if self._keeps_unknown and (step, index) not in self._known:
                self.unknown += 1
                return call
            base = self._known[step, index]
            parts = request["body"]["parts"]
            body = "".join(each if isinstance(each, str) else base[each[0] : each[1]] for each in parts)
        except (KeyError, ValueError, TypeError, IndexError) as error:
            raise CorruptionError(
                f"{entity}: the body of a request continues an earlier one that is missing ({error!r})"
            ) from None
        return replace(call, asked=replace(call.asked, request={**request, "body": body}))


def _is_short(call: Call) -> bool:
    request = call.asked.request
    if not isinstance(request, dict) or "exchange" not in request:
        return False
    body = request.get("body")
    return isinstance(body, dict) and "after" in body


def _bodies(step: Step) -> Iterator[tuple[tuple[int, int], str]]:
    for index, call in enumerate(step.calls):
        if (body := _body_of(call)) is not None:
            yield (step.number, index), body


def _body_of(call: Call) -> str | None:
    """Return the body of an exchange, if it is long enough to be shortened."""
    request: Plain = call.asked.request
    if not isinstance(request, dict) or "exchange" not in request:
        return None
    body = request.get("body")
    return body if isinstance(body, str) and len(body) >= BYTES_MIN else None


def _common(base: str, body: str) -> tuple[int, int]:
    """Return the length of the common prefix, and that of the common suffix of the rest; in characters."""
    most = min(len(base), len(body))
    begin = _equal(most, lambda at, until: base[at:until] == body[at:until])
    a, b = len(base), len(body)
    end = _equal(most - begin, lambda at, until: base[a - until : a - at] == body[b - until : b - at])
    return begin, end


def _equal(most: int, are_equal: Callable[[int, int], bool]) -> int:
    """Return how much is equal, starting at 0. are_equal: tells whether everything between two positions is equal."""
    at = 0
    while at < most and are_equal(at, min(at + _BLOCK, most)):
        at = min(at + _BLOCK, most)
    until = min(at + _BLOCK, most)
    while at < until:
        middle = (at + until + 1) // 2
        if are_equal(at, middle):
            at = middle
        else:
            until = middle - 1
    return at


def _parts_of(base: str, body: str, begin: int, end: int) -> Iterator[_Part]:
    """Yield the parts of the body: references to the base and texts. Adjacent parts of one kind are merged.

    Args:
        base: The earlier body.
        body: The body.
        begin: The length of their common prefix.
        end: The length of their common suffix.
    """
    so_far: _Part = [0, begin]
    for part in (*_between(base, body, begin, end), [len(base) - end, len(base)]):
        if isinstance(part, str) and isinstance(so_far, str):
            so_far += part
        elif not isinstance(part, str) and not isinstance(so_far, str) and so_far[1] == part[0]:
            so_far = [so_far[0], part[1]]
        else:
            if so_far and so_far != [0, 0]:
                yield so_far
            so_far = part
    yield so_far


def _between(base: str, body: str, begin: int, end: int) -> Iterator[_Part]:
    left, given = base[begin : len(base) - end], body[begin : len(body) - end]
    places: dict[str, int] = {}
    for at, piece in _pieces(left):
        places.setdefault(piece, begin + at)
    for _, piece in _pieces(given):
        is_known = len(piece) >= _PIECE_MIN and piece in places
        yield [places[piece], places[piece] + len(piece)] if is_known else piece


def _pieces(text: str) -> Iterator[tuple[int, str]]:
    at = 0
    for found in _BETWEEN_OBJECTS.finditer(text):
        yield at, text[at : found.end()]
        at = found.end()
    yield at, text[at:]
