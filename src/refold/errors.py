"""Every error that refold raises on purpose; each is a RefoldError.

from refold.errors import RefoldError, UnknownEntity

Each name is imported at its first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = [
    "AgentFailed",
    "ApprovalNeeded",
    "AttemptsExhausted",
    "Changed",
    "CorruptionError",
    "DamagedRecord",
    "Denied",
    "Departure",
    "Differs",
    "EffectFailed",
    "EffectUnknown",
    "EndOfRecording",
    "Expired",
    "Fenced",
    "HealedElsewhere",
    "InputError",
    "KeyUnreadable",
    "LockedError",
    "NetworkDenied",
    "NotAllowed",
    "NotAnswerable",
    "NotConfinable",
    "NotDone",
    "NotFolded",
    "NotRegistered",
    "NotSearchable",
    "OutsideOfRun",
    "OwnerGone",
    "OwnerSilent",
    "PartMissing",
    "PolicyDenied",
    "RecordedFailure",
    "RecordingFailed",
    "RedactionFailed",
    "RefoldError",
    "RegistryUnavailable",
    "ResultNotKept",
    "SchemaError",
    "SinkBusy",
    "SinkRefused",
    "StorageError",
    "StoreRefused",
    "StoreUnavailable",
    "StrayCall",
    "Unanswered",
    "Undecodable",
    "UndecodableError",
    "Unfinished",
    "UnknownEntity",
    "UnknownWireId",
    "Unrecorded",
    "ValidationError",
    "WithinRun",
]

if TYPE_CHECKING:
    from refold.agents.capture.encodings import Undecodable
    from refold.agents.effects.errors import EffectFailed, EffectUnknown, NotDone, ResultNotKept
    from refold.agents.heal.lease import HealedElsewhere
    from refold.agents.policy.decision import ApprovalNeeded, PolicyDenied
    from refold.agents.recorder.answers import Departure, WithinRun
    from refold.agents.recorder.context import StrayCall
    from refold.agents.recorder.failures import RecordedFailure, Unfinished
    from refold.agents.recorder.steps import AttemptsExhausted, Changed
    from refold.agents.recorder.writer import RecordingFailed
    from refold.agents.recordings.fields import PartMissing
    from refold.agents.replay.forked import NotAllowed
    from refold.agents.replay.player import Differs, EndOfRecording
    from refold.agents.replay.unrecorded import OutsideOfRun, Unrecorded
    from refold.agents.replay.watch import NetworkDenied
    from refold.avro.errors import (
        CorruptionError,
        DamagedRecord,
        Denied,
        Expired,
        InputError,
        KeyUnreadable,
        LockedError,
        NotAnswerable,
        NotConfinable,
        OwnerGone,
        OwnerSilent,
        RedactionFailed,
        RefoldError,
        RegistryUnavailable,
        SchemaError,
        StorageError,
        StoreRefused,
        StoreUnavailable,
        Unanswered,
        UndecodableError,
        UnknownEntity,
        UnknownWireId,
        ValidationError,
    )
    from refold.reducers.registered import NotRegistered
    from refold.sinks.port import SinkBusy, SinkRefused
    from refold.streams.log.kafka.offsets import NotSearchable
    from refold.streams.log.kafka.transactions import Fenced
    from refold.streams.table.batch_fold import NotFolded
    from refold.streams.worker.host.agents_app import AgentFailed
else:
    _HOMES = {
        "AgentFailed": "streams.worker.host.agents_app",
        "ApprovalNeeded": "agents.policy.decision",
        "AttemptsExhausted": "agents.recorder.steps",
        "Changed": "agents.recorder.steps",
        "CorruptionError": "avro.errors",
        "DamagedRecord": "avro.errors",
        "Denied": "avro.errors",
        "Departure": "agents.recorder.answers",
        "Differs": "agents.replay.player",
        "EffectFailed": "agents.effects.errors",
        "EffectUnknown": "agents.effects.errors",
        "EndOfRecording": "agents.replay.player",
        "Expired": "avro.errors",
        "Fenced": "streams.log.kafka.transactions",
        "HealedElsewhere": "agents.heal.lease",
        "InputError": "avro.errors",
        "KeyUnreadable": "avro.errors",
        "LockedError": "avro.errors",
        "NetworkDenied": "agents.replay.watch",
        "NotAllowed": "agents.replay.forked",
        "NotAnswerable": "avro.errors",
        "NotConfinable": "avro.errors",
        "NotDone": "agents.effects.errors",
        "NotFolded": "streams.table.batch_fold",
        "NotRegistered": "reducers.registered",
        "NotSearchable": "streams.log.kafka.offsets",
        "OutsideOfRun": "agents.replay.unrecorded",
        "OwnerGone": "avro.errors",
        "OwnerSilent": "avro.errors",
        "PartMissing": "agents.recordings.fields",
        "PolicyDenied": "agents.policy.decision",
        "RecordedFailure": "agents.recorder.failures",
        "RecordingFailed": "agents.recorder.writer",
        "RedactionFailed": "avro.errors",
        "RefoldError": "avro.errors",
        "RegistryUnavailable": "avro.errors",
        "ResultNotKept": "agents.effects.errors",
        "SchemaError": "avro.errors",
        "SinkBusy": "sinks.port",
        "SinkRefused": "sinks.port",
        "StorageError": "avro.errors",
        "StoreRefused": "avro.errors",
        "StoreUnavailable": "avro.errors",
        "StrayCall": "agents.recorder.context",
        "Unanswered": "avro.errors",
        "Undecodable": "agents.capture.encodings",
        "UndecodableError": "avro.errors",
        "Unfinished": "agents.recorder.failures",
        "UnknownEntity": "avro.errors",
        "UnknownWireId": "avro.errors",
        "Unrecorded": "agents.replay.unrecorded",
        "ValidationError": "avro.errors",
        "WithinRun": "agents.recorder.answers",
    }

    def __getattr__(name):
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        found = globals()[name] = getattr(import_module(f"refold.{_HOMES[name]}"), name)
        return found

    def __dir__():
        return sorted({*globals(), *_HOMES})
