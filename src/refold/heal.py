"""Heal runs: custom remedies, and the diagnosis that they get. docs/guides/heal.md shows how."""

from __future__ import annotations

from refold.agents.heal.diagnosis import Diagnosis, RunFinding, diagnose
from refold.agents.heal.registered import RemedyChange, remedy
from refold.agents.journal.record import Recording

__all__ = ["Diagnosis", "Recording", "RemedyChange", "RunFinding", "diagnose", "remedy"]
