"""What an import reads: exported observations, or recorded conversations (agents/importers)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeAlias

from refold.agents.importers import chat, tau_bench
from refold.agents.importers.conversation import import_conversation
from refold.agents.importers.model import Conversation
from refold.avro.errors import InputError
from refold.streams.client import Log
from refold.streams.exchange.files import ExchangeFile
from refold.streams.exchange.incoming import Incoming, IsHeld
from refold.streams.exchange.intake import Intake, Take
from refold.streams.exchange.limits import Limits
from refold.streams.exchange.reading import Progress
from refold.streams.exchange.recorder import Recorder
from refold.streams.exchange.vocabulary import Vocabulary

OBSERVATIONS = "observations"
Read: TypeAlias = Callable[[Path, Progress | None, Limits], Iterator[Conversation]]
READERS: dict[str, Read] = {
    chat.FORMAT: chat.conversations,
    tau_bench.FORMAT: tau_bench.conversations,
}
FORMATS = (OBSERVATIONS, *READERS)


class Arrival(Protocol):
    """Files on their way into a log, read twice: to check all of them, then to record them."""

    def check(self, is_held: IsHeld, progress: Sequence[Progress | None] = ()) -> int:
        """How many observations there are; InputError where one is bad. is_held: what a log's store has."""
        ...

    def record(self, log: Log, intake: Intake, progress: Sequence[Progress | None] = ()) -> None:
        """Hand them to `intake`; durable on return."""
        ...


def arrival_of(form: str, files: Sequence[ExchangeFile], vocabulary: Vocabulary) -> Arrival:
    """The files, read as their format asks."""
    return Incoming(files, vocabulary) if form == OBSERVATIONS else Conversations(READERS[form], files, vocabulary)


class Conversations:
    """Files of recorded conversations."""

    def __init__(
        self,
        read: Read,
        files: Sequence[ExchangeFile],
        vocabulary: Vocabulary,
    ) -> None:
        self._read = read
        self._files = files
        self._vocabulary = vocabulary

    def check(self, is_held: IsHeld, progress: Sequence[Progress | None] = ()) -> int:
        """Pass 1."""
        count = 0

        def one_more(*_: object) -> None:
            nonlocal count
            count += 1

        self._each(one_more, progress)
        return count

    def record(self, log: Log, intake: Intake, progress: Sequence[Progress | None] = ()) -> None:
        """Pass 2."""
        self._each(intake.take, progress)
        intake.flush()

    def _each(self, take: Take, progress: Sequence[Progress | None]) -> None:
        recorder = Recorder(self._vocabulary, take)
        for number, file in enumerate(self._files):
            with _named(file):
                found = self._read(file.path, progress[number] if progress else None, file.limits)
                for place, conversation in enumerate(found, 1):
                    _import(conversation, recorder, f"{file.path}: conversation {place}")


def _import(conversation: Conversation, recorder: Recorder, place: str) -> None:
    try:
        import_conversation(conversation, recorder.observe)
    except InputError as error:
        raise InputError(f"{place}: {error}") from error


@contextmanager
def _named(file: ExchangeFile) -> Iterator[None]:
    """Refusals name the file as its giver knows it, not the copy that is read."""
    try:
        yield
    except InputError as error:
        if not file.name:
            raise
        raise InputError(str(error).replace(str(file.path), file.name)) from error
