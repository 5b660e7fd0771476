"""The search index is a sink: it follows a log, and holds the words of its runs at an exact cut.

1. A batch names entities. Turns and runs among them (turns.py) are read at the batch's cut.
2. Their text is written into the index with the cut, in one transaction (database.py). A turn that another record of
   its session has is removed.
3. Sealed content is left out, unless the URL once had `sealed=yes`: then its words are stored as hashes that cannot be
   computed without the run's key.

Only the process that holds the file's lock writes. The index can be deleted: it is computed again.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from refold.agents.keys.choose import vault_of
from refold.agents.recordings.fields import Fields
from refold.agents.recordings.load import rebuilt
from refold.agents.usage.prices import prices
from refold.agents.vault import ValueCipher, run_key
from refold.avro.errors import InputError, KeyUnreadable
from refold.avro.observation import type_of
from refold.sinks.port import Batch, Load, Sink, SinkBusy
from refold.sinks.search.database import SearchDatabase
from refold.sinks.search.turns import TYPES, is_searched, run_of_entity, turn_of_entity
from refold.sinks.search.words import search_key
from refold.streams.client import Log
from refold.streams.cut import Cut
from refold.streams.log.port import LogPort
from refold.streams.open import log_from_port, process_context

READ_AT_ONCE = 500
_STATE_HOME = "XDG_STATE_HOME"


class SearchSink(Sink):
    """Keeps one index file. It must first be attached to a log, as `keep_up` does."""

    wants_history = False

    def __init__(self, path: Path | None, *, has_sealed: bool | None = None) -> None:
        """
        Args:
            path: The path of the file; None: the log's default.
            has_sealed: Whether sealed content is indexed; None: as the index was made.
        """
        self._path = path
        self._asked_sealed = has_sealed
        self.name = str(path or "the search index")
        self._log: Log | None = None
        self._vault: ValueCipher | None = None
        self._database: SearchDatabase | None = None
        self._lock: int | None = None

    @property
    def database(self) -> SearchDatabase:
        """The index, open."""
        assert self._database is not None, "attach it to a log first"
        return self._database

    def attach(self, log: LogPort) -> None:
        if self._log is not None and self._log.port is log:
            return
        self._log = log_from_port(log, {}, process_context())
        self._vault = vault_of(self._log, os.environ)
        path = self._path or usual_path(log)
        self.name = str(path)
        self._database = SearchDatabase(path, prices())

    def position(self) -> Cut | None:
        """Return the index's cut; None if it must be made again.

        Raises:
            SinkBusy: Another process writes the index.
        """
        if not self.is_mine():
            raise SinkBusy(f"another process keeps {self.name}")
        database = self.database
        if self._asked_sealed is not None and self._asked_sealed != database.has_sealed:
            return None
        database.reprice()
        return database.cut

    def is_mine(self) -> bool:
        """Whether this process is the one that writes the file."""
        if self._lock is None:
            lock = os.open(self.database.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(lock)
                return False
            self._lock = lock
        return True

    def load(self, load: Load) -> None:
        database = self.database
        if load.types is not None and not load.types & {*TYPES}:
            with database.writing(database.cut, load.cut):
                return
        with database.writing(database.cut, load.cut):
            database.clear()
            if self._asked_sealed is not None:
                database.put_meta("sealed", "yes" if self._asked_sealed else "no")
            names: Iterable[str] = (each.entity for each in load.states())
            if load.types is not None:  # the other types of it stay as they were defined
                names = rebuilt(self._open_log(), TYPES, load.cut) or ()
            self._put(names, load.cut)

    def write(self, batch: Batch) -> None:
        with self.database.writing(batch.before, batch.cut):
            self._put((each.entity for each in batch.states), batch.cut)

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None
        if self._vault is not None:
            self._vault.close()
            self._vault = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _put(self, names: Iterable[str], cut: Cut) -> None:
        database, has_sealed = self.database, self.database.has_sealed
        for fields in self._read(names, cut):
            if type_of(fields.entity) == "run":
                database.put_run(run_of_entity(fields))
            turn = turn_of_entity(fields, opens_sealed=has_sealed)
            if turn.is_same:
                database.remove(turn.owner, turn.step)
                continue
            key = self._key(turn.owner) if has_sealed and turn.is_sealed else None
            database.put_turn(turn, key)

    def _read(self, names: Iterable[str], cut: Cut) -> Iterator[Fields]:
        assert self._vault is not None, "attach it to a log first"
        left = (each for each in names if is_searched(each))
        while some := list(islice(left, READ_AT_ONCE)):
            for view in self._open_log().states(some, cut).values():
                yield Fields(view, self._vault)

    def _key(self, owner: str) -> bytes | None:
        """The key under which the words of a run are hashed."""
        ring = None if self._vault is None else self._vault.ring
        try:
            key = None if ring is None else ring.get(run_key(owner.partition("/")[2]))
        except KeyUnreadable:
            return None
        return None if key is None else search_key(key)

    def _open_log(self) -> Log:
        assert self._log is not None, "attach it to a log first"
        return self._log


def usual_path(log: LogPort) -> Path:
    """The default path of a log's index: in a folder of the user, by the log's id."""
    home = os.environ.get(_STATE_HOME)
    state = Path(home) if home and Path(home).is_absolute() else Path.home() / ".local" / "state"
    return state / "refold" / "search" / f"{log.log_id.hex()[:32]}.sqlite"


def open_sink(url: str) -> SearchSink:
    """Open the sink at sqlite:///PATH[?sealed=yes|no], or at the log's default path: sqlite:[?sealed=yes|no].

    Raises:
        InputError: The URL is invalid.
    """
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    sealed = options.pop("sealed", None)
    if parts.scheme != "sqlite" or parts.netloc or options or sealed not in (None, "yes", "no"):
        raise InputError(
            f"a search index is sqlite:///PATH or, at the usual place, sqlite:; with ?sealed=yes or no; not {url}"
        )
    path = Path(unquote(parts.path)) if parts.path else None
    return SearchSink(path, has_sealed=None if sealed is None else sealed == "yes")
