"""Two runs side by side, opened at their first difference. Texts that differ are compared word by word.

The explorer's pages and the deck share this view.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast

from msgspec.structs import replace

from refold.agents.compare.compare import compare
from refold.agents.compare.differences import differences
from refold.agents.compare.divergence import Divergence
from refold.agents.compare.provenance import provenance
from refold.agents.compare.render import WHYS, describe
from refold.agents.journal.record import Recording
from refold.agents.log import AgentLog
from refold.agents.redaction.redactor import Redact
from refold.explorer.queries.compare import CompareQuery, compare_json
from refold.explorer.queries.run_shapes import status_of, title_of
from refold.explorer.views.recorded_text import visible

DIFFERENCES_MAX = 40
AROUND = 25
# Longer texts are not compared word by word: it takes too long.
WORDS_MAX = 3_000
_WORD = re.compile(r"\s+|\w+|[^\w\s]")


class TextPiece(NamedTuple):
    """A piece of a text.

    Attributes:
        is_other: Whether the other side has different text at this point.
    """

    text: str
    is_other: bool


def comparison(log: AgentLog, query: CompareQuery, redact: Redact | None = None) -> dict[str, Any]:
    """Return the view of a comparison.

    Args:
        log: The log of both runs.
        query: The runs to compare.
        redact: Removes secrets from each recorded tree. With it, no sentences about the difference are included.
    """
    pair = query.pair(log)
    found = compare(pair[0].run, pair[1].run, exact=query.exact)
    behind = [] if found is None else provenance(found, *pair, query.depth)
    answer = compare_json({"a": log, "b": log}, pair, found, behind, query.at)
    lines = list(describe(found, is_short=True, is_folded=True))
    steps: Any = list(_steps(pair[0].run, pair[1].run, found))
    if redact is not None:
        if found is not None:
            lines = [f"first divergence at step {found.step}" if found.step else "first divergence at the start"]
        answer, steps = redact(answer), redact(steps)
    deepest = found
    while deepest is not None and deepest.within is not None:
        deepest = deepest.within
    return {
        "answer": answer, "lines": lines, "why": "" if found is None else WHYS[found.why],
        "a": _head(pair[0].run, redact), "b": _head(pair[1].run, redact), "steps": steps,
        "sides": [] if deepest is None else _sides(deepest, redact),
    }  # fmt: skip


def _head(run: Recording, redact: Redact | None) -> Recording:
    """Return a run whose title and agent may be shown. Only these are used, to head the view."""
    return run if redact is None else replace(run, title=str(redact(run.title)), agent=str(redact(run.agent)))


def _hidden(path: str, value: Any, redact: Redact | None) -> Any:
    """Redact a value. The last name of its path is passed on, because secrets are recognized by name too."""
    if redact is None:
        return value
    name = path.rpartition(".")[2] or "value"
    return cast("dict[str, Any]", redact({name: value}))[name]


def _sides(found: Divergence, redact: Redact | None = None) -> list[dict[str, Any]]:
    """Return each path that differs, with the values on both sides; texts also word by word."""
    listed = found.differences or differences(found.a.value, found.b.value)
    shown = [
        {
            "path": each.path or "all of it", "left": left, "right": right, "has_left": each.op != "add",
            "has_right": each.op != "remove", "words": words(left, right),
        }
        for each in listed[:DIFFERENCES_MAX]
        for left, right in [[_hidden(each.path, side, redact) for side in (each.a, each.b)]]
    ]  # fmt: skip
    return shown


def words(left: Any, right: Any) -> tuple[list[TextPiece], list[TextPiece]] | None:
    """Compare two texts word by word. None if a value is not a text, or has more than WORDS_MAX words."""
    if not (isinstance(left, str) and isinstance(right, str)):
        return None
    a, b = _WORD.findall(left), _WORD.findall(right)
    if len(a) > WORDS_MAX or len(b) > WORDS_MAX:
        return None
    matcher = difflib.SequenceMatcher(None, a, b, autojunk=False)
    sides: tuple[list[TextPiece], list[TextPiece]] = ([], [])
    for kind, a1, a2, b1, b2 in matcher.get_opcodes():
        for side, text in zip(sides, ("".join(a[a1:a2]), "".join(b[b1:b2])), strict=True):
            if text:
                side.append(TextPiece(visible(text), kind != "equal"))
    return sides


def _steps(a: Recording, b: Recording, found: Divergence | None) -> Iterator[Mapping[str, Any]]:
    """Yield the steps of both runs around the first divergence, paired by number."""
    middle = max(found.step or max(len(a.steps), len(b.steps)), 1) if found is not None else 1
    later = {(each.a, each.b) for each in found.later} if found is not None else set()
    differing = {number for pair in later for number in pair if number is not None}
    first = max(1, middle - AROUND)
    for number in range(first, min(max(len(a.steps), len(b.steps)), middle + AROUND) + 1):
        sides = [run.steps[number - 1] if number <= len(run.steps) else None for run in (a, b)]
        yield {
            "number": number,
            "parts": found is not None and found.step == number,
            "differs": number in differing,
            "sides": [
                None if step is None else {
                    "name": title_of(step), "outcome": step.outcome or status_of(step),
                    "calls": [call.asked.name for call in step.calls if call.asked.kind in ("tool", "model", "run")],
                }
                for step in sides
            ],
        }  # fmt: skip
