"""Flags and pins of runs, which retention respects: observations of the run, as everything else."""

from __future__ import annotations

import os
from typing import Any

from refold.agents.journal.record import Plain
from refold.agents.redaction.redactor import Redact, Redactor, as_of_run, for_run, groups_in
from refold.agents.redaction.tokens import ENVIRONMENT, fresh_key, kept_key
from refold.agents.vault import ValueCipher, run_key
from refold.avro.errors import Expired, UnknownEntity
from refold.streams.client import Log


def flag(log: Log, vault: ValueCipher, run: str, reason: str, redact: Redact | None = None) -> str:
    """Flag a run, which is then kept as long as the class `flagged`; return the observation's id. Expired if it
    expired.

    redact: the redactor of the reason; the standard rules without one, whatever the run was recorded through.
    """
    entity = f"run/{run}"
    _require_content(log, vault, entity)
    patch: dict[str, Any] = {"flagged": True}
    if reason:
        patch["flag_reason"] = vault.seal(run_key(run), entity, "flag_reason", _written(vault, reason, redact))
    return log.observe(entity, patch)


def _written(vault: ValueCipher, reason: str, redact: Redact | None) -> Plain:
    """Return the reason without its secrets. The log's key is created only if there is a secret to hide."""
    redact = redact or Redactor(groups=groups_in(os.environ))
    if as_of_run(redact)(reason) == reason:
        return reason
    return for_run(redact, lambda: _key(vault))(reason)


def _key(vault: ValueCipher) -> bytes:
    has_key = vault.ring is not None or os.environ.get(ENVIRONMENT)
    return kept_key(vault.ring, os.environ) if has_key else fresh_key()


def unflag(log: Log, run: str) -> str:
    """Take a flag back, and why it was set."""
    _require_run(log, f"run/{run}")
    return log.observe(f"run/{run}", {"flagged": False}, cleared=["flag_reason"])


def pin(log: Log, vault: ValueCipher, run: str) -> str:
    """Keep a run until it is unpinned. Expired where it is."""
    _require_content(log, vault, f"run/{run}")
    return log.observe(f"run/{run}", {"pinned": True})


def unpin(log: Log, run: str) -> str:
    """Let a run go as others do."""
    _require_run(log, f"run/{run}")
    return log.observe(f"run/{run}", {"pinned": False})


def _require_run(log: Log, entity: str) -> dict[str, Any]:
    found = log.states([entity]).get(entity)
    if found is None:
        raise UnknownEntity(f"{entity}: no such run is in this log; `refold runs` lists them")
    return found.fields


def _require_content(log: Log, vault: ValueCipher, entity: str) -> None:
    """Refuse a run of which nothing is left: a key created for the reason now would open nothing of it."""
    for name, stored in _require_run(log, entity).items():
        try:
            vault.open(entity, name, stored)
        except Expired as error:
            raise Expired(f"{error}; nothing of {entity} is left to keep") from None
