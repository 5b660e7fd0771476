"""How much a page reads and shows at first. Each page says what it left out, and offers more."""

from __future__ import annotations

from dataclasses import dataclass

from refold.explorer.queries.runs import STEPS_SEARCHED
from refold.explorer.queries.tail import RECORDS_OF_A_PARTITION_MIN
from refold.explorer.views.moments import READS_SEARCHED


@dataclass(frozen=True, slots=True)
class PageLimits:
    """The limits of a site's pages.

    Attributes:
        observations_traced: The number of observations in the chain of an entity's value (entity_page.py); about 150
            ms' work.
        records_searched: The number of the newest records in which agents' reads of an entity are looked for.
        partition_records_min: The least number of them in each partition.
        runs_listed: The number of runs in the list at first: the newest (runs_page.py).
        runs_more: The number of further runs that the list offers.
        steps_searched: The number of steps in which a text is searched.
        steps_costed: The number of steps that are read to know what runs cost; about 80 ms' work.
        steps_loaded: The number of steps up to which a run is read whole, and not in windows (run_page.py).
        steps_around: The number of steps of a window on each side of the shown one.
    """

    observations_traced: int = 5_000
    records_searched: int = READS_SEARCHED
    partition_records_min: int = RECORDS_OF_A_PARTITION_MIN
    runs_listed: int = 50
    runs_more: int = 200
    steps_searched: int = STEPS_SEARCHED
    steps_costed: int = 300
    steps_loaded: int = 500
    steps_around: int = 40


DEFAULT_LIMITS = PageLimits()
