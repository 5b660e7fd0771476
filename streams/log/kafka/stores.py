"""Which store a log on Kafka has its contents in: the one its URL names, else its own topic, where there is that."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from refold.avro.errors import InputError
from refold.streams.blobs.store import ContentStore
from refold.streams.blobs.url import NO_STORE, open_store
from refold.streams.log.kafka.clients import Clients
from refold.streams.log.kafka.contents import TopicContents
from refold.streams.log.kafka.damaged import UnreadableBatches
from refold.streams.log.kafka.foreign_records import ForeignRecords
from refold.streams.log.kafka.offsets import Offsets, TopicPlace
from refold.streams.log.kafka.topics import LogTopics, TopicAdmin
from refold.streams.log.kafka.url import Address


class LogStores:
    """Opens the stores of one log. found: its topics."""

    def __init__(
        self, address: Address, found: LogTopics, clients: Clients, offsets: Offsets, timeout_s: float,
        foreign: ForeignRecords, unreadable: UnreadableBatches,
    ) -> None:  # fmt: skip
        self._address = address
        self._found = found
        self._clients = clients
        self._offsets = offsets
        self._timeout_s = timeout_s
        self._foreign = foreign
        self._unreadable = unreadable

    def open(self) -> ContentStore | None:
        """The log's store; None where no URL names one and there is no topic."""
        if self._address.blobs is not None:
            return open_store(self._address.blobs)
        return self._topic() if self._found.has_contents else None

    def make(self) -> TopicContents:
        """The log's own topic, made now. StorageError."""
        self._admin().make_contents(self._address)
        return self._topic()

    @contextlib.contextmanager
    def other(self, url: str | None) -> Iterator[ContentStore]:
        """The store at a URL, or, without one, the log's own topic, made where there is none."""
        if url is not None:
            yield open_store(url)
            return
        with contextlib.closing(self._topic() if self._has_topic() else self.make()) as store:
            yield store

    def is_divided(self) -> bool:
        """Whether the URL names a store, and the log's topic has contents too, or had some."""
        if self._address.blobs is None or not self._has_topic():
            return False
        places = [TopicPlace(self._found.topics.contents, each) for each in range(self._found.partitions)]
        return any(self._offsets.ends(places, committed=False).values())

    def missing(self) -> InputError:
        """What is said where there is none."""
        return InputError(
            f"{self._address.url}: this log has no store of contents: it was made without the topic "
            f"{self._found.topics.contents}, or this user may not see it (refold acl). refold init makes it; else "
            f"{NO_STORE}"
        )

    def _has_topic(self) -> bool:
        return self._admin().open(self._address._replace(blobs=None), make=False).has_contents

    def _admin(self) -> TopicAdmin:
        return TopicAdmin(self._clients.admin(), self._timeout_s, self._clients)

    def _topic(self) -> TopicContents:
        return TopicContents(
            self._found.topics.contents, self._found.partitions, self._clients, self._offsets, self._timeout_s,
            self._foreign, self._unreadable,
        )  # fmt: skip
