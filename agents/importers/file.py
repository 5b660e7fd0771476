"""One file of recorded conversations, as an importer reads it: its JSON values, run ids, options and bounds.

The file is read as a stream of lines, plain or gzip, each one JSON value. The file is read in two passes, so an
importer must return the same conversations each time.

A JSON document over several lines is recognised by its first line: no JSON value ends in `{`, `[`, `,` or `:`. Such a
document is read whole; the size limit of one line applies to it.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from refold.agents.importers.json_lines import DEFAULT, FileLimits, Line, Progress, parse_json
from refold.avro import strict_json
from refold.avro.canonical import json_text
from refold.avro.errors import InputError
from refold.avro.observation import Value
from refold.streams.exchange.json_lines import TextLine, text_lines

OPEN_ENDS = ("{", "[", ",", ":")
SAMPLED_MAX = 20
KINDS_MAX = 1_000
KIND_CHARACTERS_MAX = 80
VALUES_FACTOR = 4
"""A conversation over many lines may hold this many times as many values as one JSON text may."""


@dataclass(slots=True)
class ImportFile:
    """One file to import. It is read several times.

    Attributes:
        name: The file's name in messages, if it is not the path.
        keys: The key that the file uses, by the format's own key, from the option --map.
        unknown: For each kind, how many lines, spans and the like the importer did not understand and stored unchanged.
        left_out: For each kind, how many the importer did not store.
    """

    path: Path
    name: str = ""
    limits: FileLimits = DEFAULT
    progress: Progress | None = None
    keys: Mapping[str, str] = field(default_factory=dict)
    unknown: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    _seen: Counter[bytes] = field(default_factory=Counter)

    @property
    def shown(self) -> str:
        """The file's name in messages."""
        return self.name or str(self.path)

    def again(self, progress: Progress | None = None) -> ImportFile:
        """Return the same file for another pass, with all counts at 0.

        Args:
            progress: Called with the progress of the new pass, if given.
        """
        return replace(self, progress=progress, unknown=Counter(), left_out=Counter(), _seen=Counter())

    def text_lines(self) -> Iterator[TextLine]:
        """Yield each line that is not blank.

        Returns:
            Lines with their place, FILE:LINE, in the order of the file.

        Raises:
            InputError: The file cannot be read, is not UTF-8, or exceeds a limit; the message names file and line.
        """
        return text_lines(self.path, self.shown, self.progress, self.limits)

    def lines(self) -> Iterator[Line]:
        """Yield each line's JSON value.

        Returns:
            Values with their place, FILE:LINE, in the order of the file.

        Raises:
            InputError: As `text_lines`, and for a line that is not usable JSON.
        """
        for place, text in self.text_lines():
            yield Line(place, parse_json(text, place, self.limits))

    def values(self) -> Iterator[Line]:
        """Yield each line's JSON value, or the one document in the file.

        Returns:
            Values with their place. A document is at FILE:1, or at its first line that is not blank.

        Raises:
            InputError: As `lines`; for a document it names the line at which the text stops being JSON.
        """
        lines = self.text_lines()
        for first in lines:
            if first.text.rstrip().endswith(OPEN_ENDS):
                yield self._document(first, lines)
                return
            yield Line(first.place, parse_json(first.text, first.place, self.limits))
            break
        for place, text in lines:
            yield Line(place, parse_json(text, place, self.limits))

    def sample(self) -> list[Line]:
        """Return the first values of the file, from which the format is recognised.

        Returns:
            At most 20 values (`SAMPLED_MAX`).

        Raises:
            InputError: As `values`.
        """
        found: list[Line] = []
        for line in self.values():
            found.append(line)
            if len(found) == SAMPLED_MAX:
                break
        return found

    def run_of(self, given: Value) -> str:
        """Return a run's id, computed from everything that the file says about a conversation.

        Equal conversations in one file are different runs. The n-th of them has the same id in each import.
        Args:
            given: Any JSON value; the id depends only on it, and on how many equal ones preceded it.

        Returns:
            32 hex digits.
        """
        digest = hashlib.sha256(json_text(given).encode()).digest()
        self._seen[digest] += 1
        return _numbered_id(digest, self._seen[digest])

    def keep(self, kind: str) -> None:
        """Count an item of a kind that is not understood and is stored unchanged."""
        _count(self.unknown, kind)

    def leave_out(self, kind: str) -> None:
        """Count an item of a kind that is not understood and is not stored."""
        _count(self.left_out, kind)

    def budget(self) -> Budget:
        """Return a new counter of the memory that a conversation over many lines uses."""
        return Budget(self.limits)

    def _document(self, first: TextLine, rest: Iterator[TextLine]) -> Line:
        lines, size = [first], len(first.text)
        for line in rest:
            lines.append(line)
            size += len(line.text)
            if size > self.limits.line_bytes:
                raise InputError(
                    f"{first.place}: the JSON document that starts here is longer than {self.limits.line_bytes:,} "
                    "bytes; if it is meant to be, raise the bound with --max-line-bytes"
                )
        text = "".join(each.text for each in lines)
        try:
            strict_json.loads(text, depth_max=self.limits.depth, items_max=self.limits.items)
        except json.JSONDecodeError as error:
            at = error.pos
            place = lines[-1].place
            for line in lines:
                if at < len(line.text):
                    place = line.place
                    break
                at -= len(line.text)
            raise InputError(
                f"{place}: is not JSON: {error.msg} at character {at + 1}; the file was taken for one JSON document, "
                "because its first line is not a whole JSON value"
            ) from None
        except strict_json.JsonRefused:
            pass  # parse_json reports it, with the option that raises the bound
        return Line(first.place, parse_json(text, first.place, self.limits))


def run_id(given: Value, number: int = 1) -> str:
    """Return the run id of the n-th conversation with this content; see `ImportFile.run_of`."""
    return _numbered_id(hashlib.sha256(json_text(given).encode()).digest(), number)


def _numbered_id(digest: bytes, number: int) -> str:
    return (digest if number == 1 else hashlib.sha256(digest + str(number).encode()).digest()).hex()[:32]


def _count(kinds: Counter[str], kind: str) -> None:
    """Count a kind under a name of limited length. Beyond a limited number of kinds, count it as "others"."""
    name = kind if len(kind) <= KIND_CHARACTERS_MAX else f"{kind[:KIND_CHARACTERS_MAX]}..."
    kinds[name if name in kinds or len(kinds) < KINDS_MAX else "others"] += 1


class Budget:
    """Counts the memory of one conversation; raises InputError beyond its limits."""

    def __init__(self, limits: FileLimits) -> None:
        self._limits = limits
        self._bytes = 0
        self._values = 0

    def take(self, text: str, place: str) -> None:
        """Count the text of one line.

        Args:
            text: The line.
            place: FILE:LINE, for the message.

        Raises:
            InputError: The conversation exceeds --max-conversation-bytes, or four times --max-items values.
        """
        self._bytes += len(text.encode())
        # Punctuation inside strings is counted too: prose has about one in 50 characters, far below the limit.
        self._values += 1 + text.count(",") + text.count("[") + text.count("{")
        if self._bytes > self._limits.conversation_bytes:
            raise InputError(
                f"{place}: the conversation is longer than {self._limits.conversation_bytes:,} bytes; if it is meant "
                "to be, raise the bound with --max-conversation-bytes"
            )
        if self._values > self._limits.items * VALUES_FACTOR:
            raise InputError(
                f"{place}: the conversation holds more than {self._limits.items * VALUES_FACTOR:,} values; if it is "
                "meant to, raise the bound with --max-items"
            )

    def give_back(self, text: str) -> None:
        """Subtract a line that `take` counted."""
        self._bytes -= len(text)
        self._values -= 1 + text.count(",") + text.count("[") + text.count("{")
