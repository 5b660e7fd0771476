"""xdist's scheduler for groups, with refold's own order (order.py).

A worker that dies must fail one test and not the run. xdist's own scheduler hangs then, where most scopes are one test:

1. It returns all scopes of the dead worker to the queue, also those whose tests have run. A worker that gets such a
   scope has nothing to run, reports nothing, and is never given more. Only tests that have not run are returned here.
2. It gives the worker that replaces the dead one a single scope. A worker begins a test when it knows the next one, or
   that there is none. So one that has a single test is given another here, or is told that it was the last.
"""

from __future__ import annotations

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadGroupScheduling
from xdist.workermanage import WorkerController

from refold_tests import worker_deaths
from refold_tests.order import Order


class OrderedScheduling(LoadGroupScheduling):
    """A LoadGroupScheduling that asks an Order for the next scope of a worker."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        super().__init__(config, log)
        self._order = Order(())

    def remove_node(self, node: WorkerController) -> str | None:
        """Return the test that the worker died in, which counts as run; None if there is none, or it is run again."""
        scopes = self.assigned_work.pop(node)
        left = [(scope, test) for scope, tests in scopes.items() for test, has_run in tests.items() if not has_run]
        if not left:
            return None
        crashed = left[0][1]
        is_run_again = worker_deaths.is_run_again(self.config, node, crashed)
        for scope, test in left if is_run_again else left[1:]:
            self.workqueue.setdefault(scope, {})[test] = False
        for each in self.assigned_work:
            self._reschedule(each)
        return None if is_run_again else crashed

    def _reschedule(self, node: WorkerController) -> None:
        if node not in self.registered_collections:  # it still collects
            return
        super()._reschedule(node)
        while self._has_one(node) and self.workqueue:
            self._assign_work_unit(node)
        if self._has_one(node) and not node.shutting_down:
            node.shutdown()

    def _has_one(self, node: WorkerController) -> bool:
        return self._pending_of(self.assigned_work[node]) == 1

    def _assign_work_unit(self, node: WorkerController) -> None:
        # At first, and when a worker died and its tests returned to the queue.
        if not self._order:
            self._order = Order((scope, next(iter(tests))) for scope, tests in self.workqueue.items())
        # The base class takes the first.
        self.workqueue.move_to_end(self._order.next_for(node), last=False)
        super()._assign_work_unit(node)
