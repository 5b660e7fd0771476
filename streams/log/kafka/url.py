"""The URL of a Kafka log, and the settings its clients connect with.

    kafka://HOST[:PORT][,HOST[:PORT]...]/PREFIX[?partitions=8][&blobs=URL]

The log's topics are PREFIX.observations and so on. partitions is the number of partitions of a new log; for an existing
log it must match. blobs (else REFOLD_BLOBS) is the store of contents too large for a record (streams/blobs/url.py), and
must be the same for every process; without it they are in the topic PREFIX.contents. Connection settings (TLS, SASL) do
not belong in URLs, because URLs are printed: see settings.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, unquote

from refold.avro.errors import InputError
from refold.streams.blobs.url import store_url
from refold.streams.log.kafka.settings import CONFIG_ENVIRONMENT, Settings, read_settings, translated
from refold.streams.partitioner import check_partitions

BLOBS_ENVIRONMENT = "REFOLD_BLOBS"
PORT_DEFAULT = 9092
PREFIX_MAX = 200
EXAMPLE = "kafka://127.0.0.1:9092/agents"
_PREFIX = re.compile(rf"[A-Za-z0-9._-]{{1,{PREFIX_MAX}}}\Z")
_SERVER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:@\[\]]+)(?::([0-9]{1,5}))?\Z")


class Address(NamedTuple):
    """Where a Kafka log is.

    Attributes:
        partitions: The number of partitions in the URL, if given.
        blobs: The URL of the contents' store, if any.
    """

    servers: str
    prefix: str
    partitions: int | None = None
    blobs: str | None = None

    @property
    def url(self) -> str:
        """The log's URL, which opens the same log in another process."""
        store = "" if self.blobs is None else f"?blobs={quote(self.blobs, safe=':/')}"
        return f"kafka://{self.servers}/{self.prefix}{store}"


def parse_url(url: str) -> Address:
    """Parse a log's URL.

    Raises:
        InputError: the URL is invalid; the message says what to give instead.
    """
    rest, _, query = url.removeprefix("kafka:").removeprefix("//").partition("?")
    servers, slash, prefix = rest.partition("/")
    if "@" in servers:
        raise InputError(
            f"a kafka: URL takes no user or password, because it is printed and stored; give the log as {EXAMPLE}, "
            f"and put sasl.username and the like into the file that {CONFIG_ENVIRONMENT} names"
        )
    if not url.startswith("kafka://") or not servers:
        raise InputError(f"{url!r} names no broker; give kafka://HOST:PORT/PREFIX, such as {EXAMPLE}")
    prefix = unquote(prefix)
    if not slash or not prefix:
        raise InputError(f"{url!r} names no log on that broker; give the prefix of its topics, such as {EXAMPLE}")
    if not _PREFIX.match(prefix) or prefix.strip(".") == "":
        raise InputError(
            f"{url!r}: {prefix!r} cannot be a prefix of topics: letters, digits, '.', '_' and '-', at most {PREFIX_MAX}"
        )
    partitions, blobs = _options(url, query)
    return Address(",".join(_server(url, each) for each in servers.split(",")), prefix, partitions, blobs)


def _server(url: str, given: str) -> str:
    found = _SERVER.match(given.strip())
    if found is None or not 0 < int(found[2] or PORT_DEFAULT) < 1 << 16:
        raise InputError(f"{url!r}: {given!r} is not a broker; give HOST:PORT, several with commas, such as {EXAMPLE}")
    return f"{found[1]}:{found[2] or PORT_DEFAULT}"


def _options(url: str, query: str) -> tuple[int | None, str | None]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    partitions, blobs = options.pop("partitions", None), options.pop("blobs", None)
    if options:
        raise InputError(f"{url}: unknown option {min(options)!r}; a kafka: log takes ?partitions=N and ?blobs=URL")
    if partitions is not None and not partitions.isdecimal():
        raise InputError(f"{url}: partitions={partitions}: give a whole number")
    store = blobs if blobs is not None else os.environ.get(BLOBS_ENVIRONMENT)
    return (
        None if partitions is None else check_partitions(int(partitions)),
        None if not store else store_url(store),
    )


def merged(address: Address, given: Mapping[str, str] | None) -> Settings:
    """Return the clients' settings: file and environment, overridden by `given`, then by the URL's brokers."""
    own = translated(given or {}, "config")
    return Settings({**read_settings(os.environ), **own, "bootstrap.servers": address.servers})
