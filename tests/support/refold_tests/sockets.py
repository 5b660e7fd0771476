"""The sockets of TCP that a process has, by the kernel's tables: also those that Python's audit events do not show."""

from __future__ import annotations

import ipaddress
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeAlias

Address: TypeAlias = tuple[str, int]
LISTENING = "0A"


class Sockets(NamedTuple):
    """The addresses on which a process listens, and the remote addresses of connections that others did not open."""

    listening: set[Address]
    outgoing: set[Address]


def sockets_of(pid: int) -> Sockets:
    """Return the sockets of a process. Raises AssertionError if it has one of UDP."""
    own = set()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            own.add(str(each.readlink()).removeprefix("socket:[").removesuffix("]"))
    listening: set[Address] = set()
    connected: list[tuple[Address, Address]] = []
    for protocol in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/{pid}/net/{protocol}").read_text().splitlines()[1:]:
            _, local, remote, state, *_, inode = line.split()[:10]
            if inode not in own:
                continue
            assert protocol.startswith("tcp"), line
            if state == LISTENING:
                listening.add(_address(local))
            else:
                connected.append((_address(local), _address(remote)))
    return Sockets(listening, {remote for local, remote in connected if local not in listening})


def _address(given: str) -> Address:
    host, _, port = given.partition(":")
    raw = bytes.fromhex(host)
    packed = b"".join(raw[k : k + 4][::-1] for k in range(0, len(raw), 4))
    found = ipaddress.ip_address(packed)
    return str(getattr(found, "ipv4_mapped", None) or found), int(port, 16)
