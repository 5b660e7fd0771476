"""How much a page reads and shows at first. Each page says what it left out, and offers more."""

from __future__ import annotations

from dataclasses import dataclass

from refold.explorer.queries.runs import STEPS_SEARCHED
from refold.explorer.queries.tail import RECORDS_OF_A_PARTITION_MIN
from refold.explorer.views.moments import READS_SEARCHED


@dataclass(frozen=True, slots=True)
class PageLimits:
    """The limits of a site's pages.

    An entity (entity_page.py):
    observations_traced: of the chain of a value; about 150 ms' work.
    records_searched: in so many of the newest records agents' reads are looked for; in at least partition_records_min
    of each partition.

    The list of runs (runs_page.py):
    runs_listed: the newest runs. runs_more: so many more are offered.
    steps_searched: in so many steps a text is searched.
    steps_costed: so many steps are read to know what runs cost; about 80 ms' work.

    A run (run_page.py):
    steps_loaded: a run of more steps is read in windows. steps_around: steps of a window on each side of the shown one.
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
