"""What an import reads: exported observations, or recorded conversations (agents/importers)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

from refold.agents.importers.conversation import import_conversation
from refold.agents.importers.file import ImportFile
from refold.agents.importers.model import Conversation, Importer
from refold.avro.errors import InputError
from refold.streams.client import Log
from refold.streams.exchange.files import ExchangeFile
from refold.streams.exchange.incoming import Incoming, IsHeld
from refold.streams.exchange.intake import Intake, Take
from refold.streams.exchange.reading import Progress
from refold.streams.exchange.recorder import Recorder
from refold.streams.exchange.vocabulary import Vocabulary


class Arrival(Protocol):
    """Files on their way into a log, read twice: to check all of them, then to record them."""

    def check(self, is_held: IsHeld, progress: Sequence[Progress | None] = ()) -> int:
        """How many observations there are; InputError where one is bad. is_held: what a log's store has."""
        ...

    def record(self, log: Log, intake: Intake, progress: Sequence[Progress | None] = ()) -> None:
        """Hand them to `intake`; durable on return."""
        ...


class Arrivals:
    """Files of several formats, each read as its format asks. importers: one a file, None for observations."""

    def __init__(
        self,
        files: Sequence[ExchangeFile],
        importers: Sequence[Importer | None],
        vocabulary: Vocabulary,
        keys: Mapping[str, str],
    ) -> None:
        self._observed = [number for number, each in enumerate(importers) if each is None]
        self._incoming = Incoming([files[number] for number in self._observed], vocabulary)
        self._files = [
            (number, each, ImportFile(files[number].path, files[number].shown, files[number].limits, keys=keys))
            for number, each in enumerate(importers)
            if each is not None
        ]
        self._vocabulary = vocabulary
        self.has_conversations = bool(self._files)
        self.conversations = 0
        self.without_time = 0
        self.unknown: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()

    def check(self, is_held: IsHeld, progress: Sequence[Progress | None] = ()) -> int:
        """Pass 1."""
        count = 0

        def one_more(*_: object) -> None:
            nonlocal count
            count += 1

        self._each(one_more, progress)
        return count + (self._incoming.check(is_held, self._of_observed(progress)) if self._observed else 0)

    def record(self, log: Log, intake: Intake, progress: Sequence[Progress | None] = ()) -> None:
        """Pass 2."""
        if self._observed:
            self._incoming.record(log, intake, self._of_observed(progress))
        self._each(intake.take, progress)
        intake.flush()

    def _of_observed(self, progress: Sequence[Progress | None]) -> Sequence[Progress | None]:
        return [progress[number] for number in self._observed] if progress else ()

    def _each(self, take: Take, progress: Sequence[Progress | None]) -> None:
        recorder = Recorder(self._vocabulary, take)
        self.conversations = self.without_time = 0
        self.unknown.clear()
        self.left_out.clear()
        for number, importer, given in self._files:
            file = given.again(progress[number] if progress else None)
            for count, conversation in enumerate(importer.read(file), 1):
                self._import(conversation, recorder, conversation.place or f"{file.shown}: conversation {count}")
            self.unknown.update(file.unknown)
            self.left_out.update(file.left_out)

    def _import(self, conversation: Conversation, recorder: Recorder, place: str) -> None:
        try:
            done = import_conversation(conversation, recorder.observe)
        except InputError as error:
            said = str(error)
            raise InputError(said if said.startswith(f"{place}:") else f"{place}: {said}") from error
        self.conversations += done.conversations
        self.without_time += done.without_time
