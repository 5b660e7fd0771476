"""`refold import`: import exported observations, or recorded conversations (agents/importers)."""

from __future__ import annotations

import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Protocol

import click

from refold.agents.importers.conversation import import_conversation
from refold.agents.importers.file import ImportFile
from refold.agents.importers.model import Conversation, Importer
from refold.agents.importers.turn_keys import TranscriptTurns
from refold.agents.recordings.same_turns import unite_transcripts
from refold.avro.errors import InputError, RefoldError
from refold.avro.shipped import shipped_types
from refold.explorer.cli.options import Command, as_json, on_log
from refold.explorer.cli.output.progress import counting, files_read
from refold.explorer.cli.output.screen import Screen, counted
from refold.explorer.cli.record.archive import ARCHIVE, import_archive
from refold.explorer.cli.record.import_formats import OBSERVATIONS, FoundFormat, formats_of, parsed_keys
from refold.explorer.queries.log_target import LogTarget
from refold.streams.client import Log
from refold.streams.exchange.files import ExchangeFile
from refold.streams.exchange.import_files import IncomingFiles, IsStored, Put
from refold.streams.exchange.import_types import TypeCatalog
from refold.streams.exchange.intake import EncodedRecorder, Intake
from refold.streams.exchange.json_lines import Progress
from refold.streams.exchange.limits import FileLimits
from refold.streams.exchange.spool import BYTES_MAX, ObservationSpool
from refold.streams.runtime import tune_garbage_collector
from refold.streams.temporary import TemporaryFolder


class ImportFiles(Protocol):
    """Files to import. Each is checked wholly before anything is recorded."""

    def check(self, is_stored: IsStored, progress: Sequence[Progress | None] = ()) -> int:
        """Check all observations, and return how many there are.

        Args:
            is_stored: Whether a log's store has the content with a digest.
            progress: For each file, a function that reports progress.

        Raises:
            InputError: An observation is invalid.
        """
        ...

    def record(self, log: Log, intake: Intake) -> None:
        """Pass all observations to `intake`. They are durable on return."""
        ...


class MixedFiles:
    """Files of several formats, each read by its own importer.

    Args:
        importers: The importer of each file; None if the file holds observations.
    """

    def __init__(
        self,
        files: Sequence[ExchangeFile],
        importers: Sequence[Importer | None],
        vocabulary: TypeCatalog,
        keys: Mapping[str, str],
        spool_bytes_max: int = BYTES_MAX,
    ) -> None:
        self._observed = [number for number, each in enumerate(importers) if each is None]
        self._incoming = IncomingFiles([files[number] for number in self._observed], vocabulary, spool_bytes_max)
        self._files = [
            (number, each, ImportFile(files[number].path, files[number].shown, files[number].limits, keys=keys))
            for number, each in enumerate(importers)
            if each is not None
        ]
        self._vocabulary = vocabulary
        self._spool = ObservationSpool(spool_bytes_max)
        self.has_conversations = bool(self._files)
        self.conversations = 0
        self.without_time = 0
        self.transcripts: list[TranscriptTurns] = []
        self.unknown: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()

    def check(self, is_stored: IsStored, progress: Sequence[Progress | None] = ()) -> int:
        """Pass 1: check every file."""
        self._pass_over(self._spool.put, progress)
        return self._spool.count + (
            self._incoming.check(is_stored, self._observed_progress(progress)) if self._observed else 0
        )

    def record(self, log: Log, intake: Intake) -> None:
        """Pass 2: record every file. The conversations are not read again, unless the spool was given up."""
        if self._observed:
            self._incoming.record(log, intake)
        if self._spool.is_whole:
            intake.take_all(self._spool)
        else:
            self._pass_over(intake.take)
        intake.flush()

    def _observed_progress(self, progress: Sequence[Progress | None]) -> Sequence[Progress | None]:
        return [progress[number] for number in self._observed] if progress else ()

    def _pass_over(self, put: Put, progress: Sequence[Progress | None] = ()) -> None:
        recorder = EncodedRecorder(self._vocabulary, put)
        self.conversations = self.without_time = 0
        self.transcripts.clear()
        self.unknown.clear()
        self.left_out.clear()
        for number, importer, given in self._files:
            file = given.again(progress[number] if progress else None)
            for count, conversation in enumerate(importer.read(file), 1):
                self._import(conversation, recorder, conversation.place or f"{file.shown}: conversation {count}")
            self.unknown.update(file.unknown)
            self.left_out.update(file.left_out)

    def _import(self, conversation: Conversation, recorder: EncodedRecorder, place: str) -> None:
        try:
            done = import_conversation(conversation, recorder.observe, self.transcripts.append)
        except InputError as error:
            reason = str(error)
            raise InputError(reason if reason.startswith(f"{place}:") else f"{place}: {reason}") from error
        self.conversations += done.conversations
        self.without_time += done.without_time


STDIN = "-"
STDIN_SHOWN = "standard input"
KINDS_SHOWN = 10


def _bound(option: str, name: str, text: str) -> Callable[[Command], Command]:
    """Return a command-line option for one of the limits."""
    return click.option(
        option, name, type=click.IntRange(min=1), default=getattr(FileLimits(), name), show_default=True, help=text
    )


@click.command("import")
@click.argument("files", metavar="FILE...", nargs=-1)
@click.option(
    "--format",
    "form",
    metavar="FORMAT",
    default=OBSERVATIONS,
    show_default=True,
    help="The format of the files; auto: detect it.",
)
@click.option(
    "--map", "keys", multiple=True, metavar="KEY=THEIRS", help="The name in the files for a key of the format."
)
@click.option("--allow-future", is_flag=True, help="Accept new observations from more than 5 minutes ahead.")
@click.option("--fork", "is_fork", is_flag=True, help="For an archive: let the log continue under an id of its own.")
@_bound("--max-line-bytes", "line_bytes", "For text: the most bytes in a line, decompressed.")
@_bound("--max-block-bytes", "block_bytes", "For a container: the most bytes in a block, decompressed.")
@_bound("--max-depth", "depth", "The most levels of nesting in one JSON text.")
@_bound("--max-items", "items", "The most values in one JSON text.")
@_bound("--max-conversation-bytes", "conversation_bytes", "The most bytes of text in a conversation over many lines.")
@_bound("--max-expansion", "expansion", "How many times larger than the file its content may be.")
@as_json
@on_log
def import_(
    target: LogTarget, files: tuple[str, ...], form: str, keys: tuple[str, ...], allow_future: bool, is_fork: bool,
    as_json: bool, **bounds: int,
) -> int:  # fmt: skip
    """Import exported observations or recorded conversations.

    Every line is checked before the first is recorded, so a file with a bad line leaves the log unchanged. Observations
    that the log already has are not recorded again: to finish an import that was stopped, repeat it. - is standard
    input. gzip is detected.

    \b
    Formats
      observations   what `refold export` writes: JSON lines, or an Avro container (.avro)
      archive        what `refold export --archive` writes: one file that makes a log of its own
      chat           conversations of chat models: messages in the style of OpenAI, Anthropic or
                     ShareGPT, or a request and its response; one a line, or in one JSON document
      tau-bench      recorded tau-bench runs: conversations with the reward of each
      swe-agent      SWE-agent trajectories (.traj)
      claude-code    sessions of Claude Code, with the subagents next to them
      codex          rollouts of Codex
      otlp           traces of agents as OTLP JSON, of the OpenTelemetry Collector's file exporter
      auto           any of these, detected from the first lines of the file; prints what it found
      MODULE:NAME    an importer of your own; packages add others (entry points refold.importers)

    With --map a key may have another name in the files: --map role=speaker. Parts that an importer does not understand
    are stored unchanged, and counted at the end.

    The bounds (--max-...) keep a damaged or hostile file from filling the memory. A refusal names the bound to raise.

    A log made from an archive has the id of the archived log and answers as that log did. You can set markers in it,
    but it takes no appends. With --fork it takes appends, as a log with its own id: cuts of the original are then cuts
    of another log, but its markers, times, versions and offsets stay valid. Without a file, --fork forks an archive
    that was imported before.

    \b
    Examples
      refold import runs.jsonl.gz --format tau-bench
      refold import backup.jsonl --log file:copy
      refold import log.avro --format archive --log file:copy
      refold import --format archive --fork --log file:copy
      zcat chats.jsonl.gz | refold import - --format chat
      refold import *.traj chats.json --format auto
      refold import dialogs.jsonl --format chat --map messages=dialog --map role=speaker
    """
    if is_fork and form != ARCHIVE:
        raise InputError(f"--fork is for archives: add --format {ARCHIVE}")
    if not files and not is_fork:
        raise click.UsageError("Missing argument 'FILE...'.")
    named = parsed_keys(keys)
    with _on_disk(files, FileLimits(**bounds)) as found, tune_garbage_collector():
        formats = formats_of(form, found, named)
        if form == ARCHIVE or any(each.name == ARCHIVE for each in formats):
            _require_alone(found, formats)
            import_archive(target, found, is_fork=is_fork, as_json=as_json)
            return 0
        arrival, total = _check_files(target, formats, found, named, allow_future)
        with target.write() as log, counting("Importing", total, "observations") as advance:
            intake = Intake(log, advance)
            with _report_interruption(intake, total):
                arrival.record(log, intake)
                unite_transcripts(log, arrival.transcripts, log.vault)
    _report(Screen(), intake, arrival, [(file.shown, each) for file, each in zip(found, formats, strict=True)], as_json)
    return 0


def _require_alone(files: list[ExchangeFile], formats: list[FoundFormat]) -> None:
    other = next((file for file, each in zip(files, formats, strict=True) if each.name != ARCHIVE), None)
    if other is not None:
        raise InputError(f"{other.shown}: an archive makes a log of its own; import this file by itself")


@contextmanager
def _on_disk(files: tuple[str, ...], limits: FileLimits) -> Iterator[list[ExchangeFile]]:
    """Yield the files so that each can be read several times. One that can be read only once is copied to disk
    first.
    """
    if files.count(STDIN) > 1:
        raise InputError("-: standard input can be read once; name it once")
    with TemporaryFolder("refold-import-") as folder:
        found = []
        for number, given in enumerate(files):
            path = Path(given)
            if given == STDIN or path.is_fifo() or path.is_char_device():
                copy = folder / str(number)
                _spool(given, copy)
                found.append(ExchangeFile(copy, STDIN_SHOWN if given == STDIN else given, limits))
            else:
                found.append(ExchangeFile(path, limits=limits))
        yield found


def _spool(given: str, copy: Path) -> None:
    try:
        with copy.open("wb") as target, ExitStack() as stack:
            stream = sys.stdin.buffer if given == STDIN else stack.enter_context(Path(given).open("rb"))
            shutil.copyfileobj(stream, target, 1 << 20)
    except OSError as error:
        reason = error.strerror or error
        raise InputError(
            f"{given}: cannot be copied to {copy.parent}: {reason}; name another place in TMPDIR"
        ) from error


def _check_files(
    target: LogTarget, formats: list[FoundFormat], files: list[ExchangeFile], keys: dict[str, str], allow_future: bool
) -> tuple[MixedFiles, int]:
    """Check every line of the files; return the checked files, and how many observations they hold."""
    with ExitStack() as stack, files_read("Checking", [each.path for each in files]) as progress:
        log = stack.enter_context(target.read()) if target.exists() else None
        held = () if log is None else log.port.registry
        now = None if allow_future else time.time_ns() // 1000
        vocabulary = TypeCatalog(held, target.own_types(), shipped_types(), now)
        arrival = MixedFiles(files, [each.importer for each in formats], vocabulary, keys)
        return arrival, arrival.check(
            lambda digest: log is not None and log.port.blobs.get(digest) is not None, progress
        )


@contextmanager
def _report_interruption(intake: Intake, total: int) -> Iterator[None]:
    """If an import is interrupted, report how many observations are recorded."""
    try:
        yield
    except BaseException as error:
        how_far = (
            f"at least {intake.durable:,} of {total:,} observations are recorded; "
            "import the same again to finish, nothing is recorded twice"
        )
        if isinstance(error, (RefoldError, OSError)):
            raise InputError(f"the import stopped: {str(error).rstrip('.')}; {how_far}") from error
        with suppress(OSError):
            print(f"refold: the import was stopped; {how_far}", file=sys.stderr)
        raise


def _report(
    screen: Screen, intake: Intake, arrival: MixedFiles, files: list[tuple[str, FoundFormat]], as_json: bool
) -> None:
    if as_json:
        counts = {"read": intake.read, "new": intake.new, "known": intake.known, "entities": len(intake.entities)}
        listed = [{"file": name, "format": each.name, "found": each.what or None} for name, each in files]
        screen.json({**counts, "files": listed, **(_conversations_json(arrival) if arrival.has_conversations else {})})
        return
    for name, each in files:
        if each.what:
            screen.say(f"{name}: {each.name}, {each.what}")
    read, of = counted(intake.read, "observation"), counted(len(intake.entities), "entity", "entities")
    screen.say(f"{read} of {of} read: {intake.new:,} new, {intake.known:,} already known")
    if arrival.has_conversations:
        without = f", {arrival.without_time:,} without any time" if arrival.without_time else ""
        screen.say(f"{counted(arrival.conversations, 'conversation')}{without}")
    for doing, kinds in (("stored unchanged", arrival.unknown), ("left out", arrival.left_out)):
        if kinds:
            listed_kinds = ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common(KINDS_SHOWN))
            more = f" and {len(kinds) - KINDS_SHOWN:,} more kinds" if len(kinds) > KINDS_SHOWN else ""
            screen.say(f"not understood and {doing}: {listed_kinds}{more}")


def _conversations_json(arrival: MixedFiles) -> dict[str, object]:
    return {
        "conversations": arrival.conversations,
        "without_time": arrival.without_time,
        "unknown": dict(arrival.unknown),
        "left_out": dict(arrival.left_out),
    }
