"""Make a golden trace from a recorded run.

1. The values of its reads are looked up in the log, because the file holds them.
2. The run is made portable, redacted if asked, and admitted: a run that cannot work as a test is refused.
3. The file is written. Then the run records that a golden trace was made of it, so that retention keeps it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from refold.agents.golden.file import DefaultAnswer, Golden, Origin
from refold.agents.golden.portable import portable
from refold.agents.golden.verdict import admitted
from refold.agents.journal.record import Plain, Recording, children_of
from refold.agents.recordings.values import Fields, with_values
from refold.agents.redaction.redactor import Redact
from refold.avro.errors import InputError, NotAnswerable


def golden_of_run(
    run: Recording, fields: Fields, *, name: str = "", entry: str = "", expect: Iterable[str] = (),
    description: str = "", known_bad: str = "", must_fail: str = "", answers: Mapping[str, Plain] | None = None,
    redact: Redact | None = None, redactor: str = "",
) -> Golden:  # fmt: skip
    """Return the golden trace of a run. redactor: the name of redact, if it is also applied to what agents do now.

    InputError if it could not work as a test; NotAnswerable if content is gone.
    """
    missing = [child for each in run.family for child in children_of(each.steps) if child not in each.children]
    if missing:
        raise NotAnswerable(f"run {run.run}: the recording of its nested run {missing[0]} is missing")
    if not entry:
        raise InputError(f"run {run.run} does not name its agent's function: name it with --entry module:function")
    return admitted(
        Golden(
            name=name or name_of(run), description=description, entry=entry, expect=tuple(expect) or ("exact",),
            known_bad=known_bad, must_fail=must_fail, redact=redactor, recorded=Origin(run=run.run, hash=run.hash),
            answers=tuple(DefaultAnswer(name=key, answer=value) for key, value in (answers or {}).items()),
            run=portable(with_values(run, fields), redact),
        )
    )  # fmt: skip


def name_of(run: Recording) -> str:
    """Return the default name of a run's golden trace: its agent and the beginning of its id."""
    words = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{run.agent}-{run.run[:12]}").strip("-._")
    return words or "run"
