"""A Kafka's folder: what it is, in cluster.json, so that a kept one is started again as what it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from refold.avro.errors import InputError
from refold.testing.kafka.node import new_cluster_id
from refold.testing.kafka.security import ADMIN, new_password

CONTROLLER = "controller"


class Kept(NamedTuple):
    """`passwords` by user, empty where it is not secured."""

    cluster_id: str
    nodes: int
    passwords: dict[str, str]


def opened(folder: Path, nodes: int, secure: bool) -> Kept:
    """What the folder holds, new if it holds nothing. Raises InputError when that is another kind of Kafka."""
    path = folder / "cluster.json"
    if path.exists():
        kept = Kept(**json.loads(path.read_text(encoding="utf-8")))
        if (kept.nodes, bool(kept.passwords)) != (nodes, secure):
            held = f"{kept.nodes} node{'s' if kept.nodes > 1 else ''}, {'secured' if kept.passwords else 'plain'}"
            raise InputError(f"{folder} holds a Kafka of {held}; start it as that, or name another folder")
        return kept
    folder.mkdir(parents=True, exist_ok=True)
    kept = Kept(new_cluster_id(), nodes, {name: new_password() for name in (ADMIN, CONTROLLER)} if secure else {})
    write(folder, kept)
    return kept


def write(folder: Path, kept: Kept) -> None:
    part = folder / "cluster.json.part"
    part.touch(mode=0o600)
    part.write_text(json.dumps(kept._asdict()), encoding="utf-8")
    part.replace(folder / "cluster.json")
