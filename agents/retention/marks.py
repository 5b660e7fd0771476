"""Flags and pins of runs, which retention respects. They are observations of the run."""

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
    """Flag a run. A flagged run is kept at least as long as the class `flagged` says.

    Args:
        log: The log.
        vault: Seals the reason.
        run: The run's id.
        reason: Why the run is flagged; may be empty.
        redact: The redactor of the reason. Without one the standard rules apply, even if the run was recorded with
            others.

    Returns:
        The observation's id.

    Raises:
        UnknownEntity: The log has no such run.
        Expired: The run's content has expired.
    """
    entity = f"run/{run}"
    _require_content(log, vault, entity)
    patch: dict[str, Any] = {"flagged": True}
    if reason:
        patch["flag_reason"] = vault.seal(run_key(run), entity, "flag_reason", _redacted_reason(vault, reason, redact))
    return log.observe(entity, patch)


def _redacted_reason(vault: ValueCipher, reason: str, redact: Redact | None) -> Plain:
    """Return the reason without its secrets. The log's key is created only if there is a secret to hide."""
    redact = redact or Redactor(groups=groups_in(os.environ))
    if as_of_run(redact)(reason) == reason:
        return reason
    return for_run(redact, lambda: _key(vault))(reason)


def _key(vault: ValueCipher) -> bytes:
    has_key = vault.ring is not None or os.environ.get(ENVIRONMENT)
    return kept_key(vault.ring, os.environ) if has_key else fresh_key()


def unflag(log: Log, run: str) -> str:
    """Remove a flag and its reason.

    Returns:
        The observation's id.

    Raises:
        UnknownEntity: The log has no such run.
    """
    _require_run(log, f"run/{run}")
    return log.observe(f"run/{run}", {"flagged": False}, cleared=["flag_reason"])


def pin(log: Log, vault: ValueCipher, run: str) -> str:
    """Keep a run until it is unpinned.

    Returns:
        The observation's id.

    Raises:
        UnknownEntity: The log has no such run.
        Expired: The run's content has expired.
    """
    _require_content(log, vault, f"run/{run}")
    return log.observe(f"run/{run}", {"pinned": True})


def unpin(log: Log, run: str) -> str:
    """Remove a pin, so that the run expires by its class.

    Returns:
        The observation's id.

    Raises:
        UnknownEntity: The log has no such run.
    """
    _require_run(log, f"run/{run}")
    return log.observe(f"run/{run}", {"pinned": False})


def _require_run(log: Log, entity: str) -> dict[str, Any]:
    found = log.states([entity]).get(entity)
    if found is None:
        raise UnknownEntity(f"{entity}: no such run is in this log; `refold runs` lists them")
    return found.fields


def _require_content(log: Log, vault: ValueCipher, entity: str) -> None:
    """Reject a run whose content has expired: a new key for the reason could not open anything of it."""
    for name, stored in _require_run(log, entity).items():
        try:
            vault.open(entity, name, stored)
        except Expired as error:
            raise Expired(f"{error}; nothing of {entity} is left to keep") from None
