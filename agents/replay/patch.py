"""What a fork changes. It stands in the child's run, and the child's chain of hashes goes on from it.

As a tree, of what is changed alone:

    state       edits of the parent's state after the step at which the fork parts (journal/delta.py)
    input       what the child's code is given in place of the parent's input, from its beginning on
    results     {"7/search": {"answer": ...}}: what the call of that name in that step is answered with;
                "7/search#2" is the second of them in the step, and {"failure": {...}} has it fail
    arguments   {"chat": {"model": "..."}}: keyword arguments of every call of that name behind the fork, in place of
                the code's own: another model, another prompt; under "model" those of every model call
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from refold.agents.journal.delta import edits
from refold.agents.journal.objects import loaded
from refold.agents.journal.record import Edit, Failure, Kind, Plain, RecordedRequest, Step, to_tree
from refold.agents.recorder.answers import NO_ARGUMENTS, CallSite
from refold.agents.recorder.plain import decoded, kept
from refold.avro.errors import InputError


class Override(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a call is answered with, or how it fails."""

    answer: Plain = None
    failure: Failure | None = None


class Patch(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a fork changes; all of it may be absent."""

    state: tuple[Edit, ...] = ()
    input: Plain = msgspec.UNSET
    results: dict[str, Override] = {}
    arguments: dict[str, dict[str, Plain]] = {}

    @property
    def tree(self) -> Plain:
        """As it is recorded."""
        return to_tree(self)

    @property
    def arguments_alone(self) -> Patch:
        """What it changes in runs within."""
        return Patch(arguments=self.arguments)

    def with_arguments(self, other: Patch) -> Patch:
        """This one, with the other's arguments where it has none of that name."""
        return msgspec.structs.replace(self, arguments={**other.arguments, **self.arguments})

    def arguments_of(self, kind: Kind, name: str) -> Mapping[str, Plain]:
        """Those of the call's name, over those of every model call."""
        if not self.arguments:
            return NO_ARGUMENTS
        of_models = self.arguments.get("model", {}) if kind == "model" else {}
        return {**of_models, **self.arguments.get(name, {})}


NO_PATCH = Patch()


def read_patch(tree: Plain) -> Patch:
    """The patch that stands recorded; an empty one for null."""
    return Patch() if tree is None else msgspec.convert(tree, Patch)


class Results:
    """The results that a patch puts in the place of calls, found as the calls come."""

    def __init__(self, patch: Patch, at: int, steps: Iterable[Step] = ()) -> None:
        """at: the step after which the fork parts. steps: the parent's. InputError for a result that could never be
        met."""
        self._left = dict(patch.results)
        self._counts: Counter[tuple[int, int, str, str | None]] = Counter()
        self._branches = {step.number: [(call.asked.name, call.branch) for call in step.calls] for step in steps}
        for key in self._left:
            step, _, name = key.partition("/")
            if not (step.isdecimal() and int(step) > at and name):
                raise InputError(
                    f"a result replaces that of STEP/NAME, with a step after the fork at {at} (as {at + 1}/search, or "
                    f"{at + 1}/search#2 for the second call of that name); given {key!r}"
                )

    def take(self, place: CallSite, asked: RecordedRequest) -> Override | None:
        """What this call is answered with, in any attempt of its step; None where the patch says nothing of it."""
        count = self._count(place, asked.name)
        keys = [f"{place.step}/{asked.name}#{count}"]
        if count == 1:
            keys.append(f"{place.step}/{asked.name}")
        return next((self._left[key] for key in keys if key in self._left), None)

    def _count(self, place: CallSite, name: str) -> int:
        """Which of the step's calls of that name it is: the one that its branch made in the parent, else as it came."""
        step, attempt, branch = place.step, place.attempt, place.branch
        self._counts.update([(step, attempt, name, None), (step, attempt, name, branch)])
        recorded = [each for called, each in self._branches.get(step, ()) if called == name]
        own = [number for number, each in enumerate(recorded, 1) if each == branch]
        of_branch = self._counts[step, attempt, name, branch]
        return own[of_branch - 1] if of_branch <= len(own) else self._counts[step, attempt, name, None]


def patch_of(
    before: Plain,
    *,
    state: Mapping[str, Plain] | Callable[[Plain], Plain] | None = None,
    drop: Sequence[str] = (),
    input: Plain = msgspec.UNSET,
    results: Mapping[str, Plain | Failure] | None = None,
    arguments: Mapping[str, Mapping[str, Plain]] | None = None,
) -> Patch:
    """The patch that a user asks for.

    before: the parent's state where the fork parts, as it is recorded. state: values by path (`order.status`,
    `messages[2].content`), or a function that edits a copy in place, or returns another. drop: paths to be gone.
    results: answers, or a Failure, by STEP/NAME. InputError for a path that leads nowhere, and for a value that cannot
    be kept.
    """
    after = loaded(copy.deepcopy(before))
    if callable(state):
        other = state(after)
        after = after if other is None else other
    else:
        for path, value in (state or {}).items():
            _set(after, path, value)
    for path in drop:
        _drop(after, path)
    return Patch(
        state=edits(before, decoded(kept(after, "state"))),
        input=input if input is msgspec.UNSET else decoded(kept(input, "input")),
        results={
            key: Override(failure=value)
            if isinstance(value, Failure)
            else Override(answer=decoded(kept(value, f"results[{key!r}]")))
            for key, value in (results or {}).items()
        },
        arguments={key: dict(value) for key, value in (arguments or {}).items()},
    )


def _set(tree: Plain, path: str, value: Plain) -> None:
    inside, last = _found(tree, path)
    if isinstance(inside, list) and last == len(inside):
        inside.append(value)
    else:
        _member(inside, last, path, is_new=isinstance(inside, dict))
        inside[last] = value


def _drop(tree: Plain, path: str) -> None:
    inside, last = _found(tree, path)
    _member(inside, last, path)
    del inside[last]


def _found(tree: Plain, path: str) -> tuple[Plain, str | int]:
    """What holds the last part of a path, and that part."""
    parts: list[str | int] = []
    for text in path.split("."):
        name, *indexes = text.replace("]", "").split("[")
        parts += [name] if name else []
        parts += [int(each) if each.isdecimal() else each for each in indexes]
    for part in parts[:-1]:
        tree = _member(tree, part, path)
    return tree, parts[-1] if parts else ""


def _member(inside: Plain, part: str | int, path: str, *, is_new: bool = False) -> Plain:
    """What stands under a key or an index. InputError where nothing does, unless it is to be new."""
    if isinstance(inside, dict) and isinstance(part, str) and (is_new or part in inside):
        return inside.get(part)
    if isinstance(inside, list) and isinstance(part, int) and part < len(inside):
        return inside[part]
    raise InputError(f"the state has no {path}; a path is keys and indexes from the root, as order.items[2].price")
