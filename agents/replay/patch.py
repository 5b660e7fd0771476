"""The changes of a fork. They are stored in the child's run, and the child's chain of hashes continues from them.

As a tree, with only the parts that change:

    state       edits of the parent's state after the step at which the fork diverges (journal/delta.py)
    input       the input of the child's code instead of the parent's, from its beginning on
    results     {"7/search": {"answer": ...}}: the answer of the call of that name in that step;
                "7/search#2" is the second of them in the step, and {"failure": {...}} makes it fail
    arguments   {"chat": {"model": "..."}}: keyword arguments of every call of that name after the fork, instead of
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
    """The answer of a call, or its failure."""

    answer: Plain = None
    failure: Failure | None = None


class Patch(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The changes of a fork; all of them are optional."""

    state: tuple[Edit, ...] = ()
    input: Plain = msgspec.UNSET
    results: dict[str, Override] = {}
    arguments: dict[str, dict[str, Plain]] = {}

    @property
    def tree(self) -> Plain:
        """The patch in its recorded form."""
        return to_tree(self)

    @property
    def arguments_alone(self) -> Patch:
        """Return only the changes that hold in nested runs."""
        return Patch(arguments=self.arguments)

    def with_arguments(self, other: Patch) -> Patch:
        """Return this patch, with the other's arguments for names that it does not have."""
        return msgspec.structs.replace(self, arguments={**other.arguments, **self.arguments})

    def arguments_of(self, kind: Kind, name: str) -> Mapping[str, Plain]:
        """Return the arguments for the call's name, over those for every model call."""
        if not self.arguments:
            return NO_ARGUMENTS
        of_models = self.arguments.get("model", {}) if kind == "model" else {}
        return {**of_models, **self.arguments.get(name, {})}


NO_PATCH = Patch()


def read_patch(tree: Plain) -> Patch:
    """Return the recorded patch; an empty one for null."""
    return Patch() if tree is None else msgspec.convert(tree, Patch)


class Results:
    """The results that a patch gives to calls, found as the calls are made."""

    def __init__(self, patch: Patch, at: int, steps: Iterable[Step] = ()) -> None:
        """Prepare the results.

        Args:
            patch: The changes of the fork.
            at: The step after which the fork diverges.
            steps: The parent's steps.

        Raises:
            InputError: A result is not named STEP/NAME, or its step is not after the fork.
        """
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

    def take(self, site: CallSite, request: RecordedRequest) -> Override | None:
        """Return the result of this call, in any attempt of its step; None if the patch has none for it."""
        count = self._count(site, request.name)
        keys = [f"{site.step}/{request.name}#{count}"]
        if count == 1:
            keys.append(f"{site.step}/{request.name}")
        return next((self._left[key] for key in keys if key in self._left), None)

    def _count(self, site: CallSite, name: str) -> int:
        """Return its number among the step's calls of that name: as its branch made it in the parent, else in order."""
        step, attempt, branch = site.step, site.attempt, site.branch
        self._counts.update([(step, attempt, name, None), (step, attempt, name, branch)])
        recorded = [each for called, each in self._branches.get(step, ()) if called == name]
        own = [number for number, each in enumerate(recorded, 1) if each == branch]
        of_branch = self._counts[step, attempt, name, branch]
        return own[of_branch - 1] if of_branch <= len(own) else self._counts[step, attempt, name, None]


def unused_results(results: Iterable[str], child: Iterable[Step]) -> list[str]:
    """Return the STEP/NAME of results that answered no call of the child's steps, in any attempt."""
    calls: Counter[tuple[int, str]] = Counter()
    for step in child:
        for attempt in step.attempts:
            calls |= Counter((step.number, call.asked.name) for call in attempt.calls)
    unused = []
    for key in results:
        position, _, called = key.partition("/")
        name, _, count = called.rpartition("#")
        name, number = (name, int(count)) if name and count.isdecimal() else (called, 1)
        if calls[int(position), name] < number:
            unused.append(key)
    return unused


def added_paths(before: Plain, paths: Iterable[str]) -> list[str]:
    """Return the paths at which an object of a state has no value. A path into what another path adds is left out."""
    added = []
    for path in paths:
        try:
            inside, last = _container_of(before, path)
        except InputError:
            continue
        if isinstance(inside, dict) and last not in inside:
            added.append(path)
    return added


def patch_of(
    before: Plain,
    *,
    state: Mapping[str, Plain] | Callable[[Plain], Plain] | None = None,
    drop: Sequence[str] = (),
    input: Plain = msgspec.UNSET,
    results: Mapping[str, Plain | Failure] | None = None,
    arguments: Mapping[str, Mapping[str, Plain]] | None = None,
) -> Patch:
    """Return the patch of a user's arguments.

    Args:
        before: The parent's recorded state at the fork.
        state: Values by path (`order.status`, `messages[2].content`), or a function that edits a copy in place, or
            returns another.
        drop: Paths to remove.
        input: The child's input instead of the parent's.
        results: Answers, or a Failure, by STEP/NAME.
        arguments: Arguments for every call of a name.

    Raises:
        InputError: A path does not exist, or a value cannot be recorded.
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
    inside, last = _container_of(tree, path)
    if isinstance(inside, list) and last == len(inside):
        inside.append(value)
    else:
        _member(inside, last, path, is_new=isinstance(inside, dict))
        inside[last] = value


def _drop(tree: Plain, path: str) -> None:
    inside, last = _container_of(tree, path)
    _member(inside, last, path)
    del inside[last]


def _container_of(tree: Plain, path: str) -> tuple[Plain, str | int]:
    """Return the container of the last part of a path, and that part."""
    parts: list[str | int] = []
    for text in path.split("."):
        name, *indexes = text.replace("]", "").split("[")
        parts += [name] if name else []
        parts += [int(each) if each.isdecimal() else each for each in indexes]
    for part in parts[:-1]:
        tree = _member(tree, part, path)
    return tree, parts[-1] if parts else ""


def _member(inside: Plain, part: str | int, path: str, *, is_new: bool = False) -> Plain:
    """Return the member at a key or an index.

    Raises:
        InputError: There is none, and it is not new.
    """
    if isinstance(inside, dict) and isinstance(part, str) and (is_new or part in inside):
        return inside.get(part)
    if isinstance(inside, list) and isinstance(part, int) and part < len(inside):
        return inside[part]
    raise InputError(f"the state has no {path}; a path is keys and indexes from the root, as order.items[2].price")
