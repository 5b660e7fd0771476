"""The order in which xdist's workers get the tests (`make test`). It keeps both cores busy as long as possible.

1. Half of the workers begin with tests that mostly wait for a broker, the other half with tests that compute. In the
   order of collection, all workers would wait at the same time and leave the cores idle.
2. A worker stays with a module until all of its tests are assigned, so its fixtures are created once. When every module
   has been begun, a free worker helps with the one that has most tests left.
3. What cannot be shared comes first: groups (`xdist_group`), then the modules in the reverse order of collection, in
   which the longest tests come last. So the run ends with short tests, and no worker runs alone for long.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable

# Their tests wait for brokers, for clients that time out, and for pages. A missing module costs seconds.
WAITING = (
    "tests/agents/effects/", "tests/agents/replay/", "tests/explorer/test_deadletters.py",
    "tests/explorer/test_secured.py", "tests/sinks/", "tests/streams/objects/", "tests/streams/test_kafka_",
    "tests/streams/worker/", "tests/testing/",
)  # fmt: skip


class Order:
    """The scopes that are not assigned yet, and the order in which workers get them.

    A scope is what xdist assigns to one worker as a whole: a test's node id, or the name of a group.
    """

    def __init__(self, scopes: Iterable[tuple[str, str]]) -> None:
        """scopes: each scope in the order of collection, with the node id of its first test."""
        modules = defaultdict[str, list[str]](list)
        groups: dict[str, list[str]] = {}
        self._waits: dict[str, bool] = {}
        for scope, node in scopes:
            path = node.partition("::")[0]
            module = path if scope == node else f"{path}@{scope}"
            (modules if scope == node else groups).setdefault(module, []).append(scope)
            self._waits[module] = path.startswith(WAITING)
        # The lists are reversed, because scopes are taken from their ends.
        self._left = {name: [*reversed(each)] for name, each in (*groups.items(), *reversed(modules.items()))}
        self._begun: set[str] = set()
        self._lanes: dict[Hashable, bool] = {}
        self._at: dict[Hashable, str] = {}

    def __bool__(self) -> bool:
        return bool(self._left)

    def next_for(self, worker: Hashable) -> str:
        """Return the next scope for a worker. It is assigned once. There must be one left."""
        module = self._at.get(worker, "")
        if module not in self._left:
            module = self._at[worker] = self._chosen(worker)
            self._begun.add(module)
        scopes = self._left[module]
        scope = scopes.pop()
        if not scopes:
            del self._left[module]
        return scope

    def _chosen(self, worker: Hashable) -> str:
        waits = self._lanes.setdefault(worker, len(self._lanes) % 2 == 0)
        fresh = [each for each in self._left if each not in self._begun]
        of_its_kind = [each for each in fresh if self._waits[each] == waits]
        return next(iter(of_its_kind or fresh), None) or max(self._left, key=lambda each: len(self._left[each]))
