"""xdist's scheduler for groups, with refold's own order (order.py)."""

from __future__ import annotations

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadGroupScheduling
from xdist.workermanage import WorkerController

from refold_tests.order import Order


class OrderedScheduling(LoadGroupScheduling):
    """A LoadGroupScheduling that asks an Order for the next scope of a worker."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        super().__init__(config, log)
        self._order = Order(())

    def _assign_work_unit(self, node: WorkerController) -> None:
        # At first, and when a worker died and its tests returned to the queue.
        if not self._order:
            self._order = Order((scope, next(iter(tests))) for scope, tests in self.workqueue.items())
        # The base class takes the first.
        self.workqueue.move_to_end(self._order.next_for(node), last=False)
        super()._assign_work_unit(node)
