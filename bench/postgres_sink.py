"""Measures the PostgreSQL sink: changes a second into tables and history; the limit is a plain COPY of the same rows.

1. Record `CHANGES` observations over `ENTITIES` entities in an embedded log: half of them, then the other half.
2. A sink loads the first half (COPY of every entity, and history), then follows the second half, change by change.
3. The resulting rows are copied out of the tables and, with psycopg's COPY only, into empty tables with equal columns
   and keys.
The server runs on this machine, on loopback and without fsync, as for tests: the sink is measured, not the server.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from itertools import islice
from pathlib import Path
from statistics import median
from threading import Event
from typing import NamedTuple

from page import titled_table
from rich.console import Console
from workload import observations, uniform

import refold
from refold.testing.postgres import Postgres, started
from refold.testing.processes import ServerMissing

CHANGES, ENTITIES, RUNS, PARTITIONS, SEED, GOAL = 200_000, 100_000, 3, 4, 7, 10_000


class Took(NamedTuple):
    """How many items of which kind, in how many seconds. cpu_s: CPU time of this process, without the server."""

    count: int
    rows: int
    wall_s: float
    cpu_s: float


def show(console: Console, folder: Path, share: int) -> None:
    """Print the table."""
    count = CHANGES // share
    table = titled_table(
        f"The PostgreSQL sink, {count // 2:,} entities loaded, {count // 2:,} changes followed, "
        f"with history; medians of {RUNS} (goal: {GOAL:,} changes a second)",
        "what", "a second", "rows added a second", "s", "CPU us each",
    )  # fmt: skip
    try:
        server = started()
    except ServerMissing as error:
        console.print(f"PostgreSQL sink: not measured: {error}")
        return
    place = Path(tempfile.mkdtemp(prefix="bench-postgres-", dir=folder))
    try:
        with server, console.status("following into PostgreSQL"):
            found = [_run(server, place / f"log-{number}", count) for number in range(RUNS)]
    finally:
        shutil.rmtree(place)
    for number, what in enumerate(("load", "follow", "plain COPY of the rows that stand then")):
        took = [each[number] for each in found]
        wall, cpu = median(each.wall_s for each in took), median(each.cpu_s for each in took)
        of = took[0]
        table.add_row(what, f"{of.count / wall:,.0f}", f"{of.rows / wall:,.0f}", f"{wall:.2f}",
                      f"{cpu / of.count * 1e6:.1f}")  # fmt: skip
    console.print(table)


def _run(server: Postgres, place: Path, count: int) -> tuple[Took, Took, Took]:
    from refold.sinks.postgres.sink import PostgresSink
    from refold.sinks.run import keep_up
    from refold.streams.runtime import tune_garbage_collector

    source = observations(count, uniform(ENTITIES * count // CHANGES, SEED))
    schema = f"bench_{place.name.replace('-', '_')}"
    sink = PostgresSink(f"{server.url}?schema={schema}")
    with refold.open(f"file:{place}?partitions={PARTITIONS}") as log:

        def kept(more: int) -> Took:
            for each in islice(source, more):
                log.observe(**each)
            log.flush()
            rows_before = _rows(server, schema)
            began, cpu = time.perf_counter(), time.process_time()
            with tune_garbage_collector():  # as in `refold sink`
                keep_up(log.port, sink, follow=False, stop=Event())
            wall_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
            return Took(more, _rows(server, schema) - rows_before, wall_s, cpu_s)

        loaded = kept(count // 2)
        followed = kept(count - count // 2)
    sink.close()
    return loaded, followed, _copied(server, schema, count)


def _tables(server: Postgres, schema: str) -> list[str]:
    import psycopg

    with psycopg.connect(server.url) as connection:
        found = connection.execute("SELECT quote_ident(schemaname) || '.' || quote_ident(tablename) FROM pg_tables "
                                   "WHERE schemaname = %s ORDER BY 1", (schema,)).fetchall()  # fmt: skip
    return [name for (name,) in found]


def _rows(server: Postgres, schema: str) -> int:
    import psycopg

    with psycopg.connect(server.url, autocommit=True) as connection:
        return sum(connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in _tables(server, schema))


def _copied(server: Postgres, schema: str, count: int) -> Took:
    """Copy every row out of its table and into another one with equal columns; only the second copy is timed."""
    import psycopg

    rows = _rows(server, schema)
    wall_s = cpu_s = 0.0
    with psycopg.connect(server.url, autocommit=True) as connection:
        for name in _tables(server, schema):
            with connection.cursor().copy(f"COPY {name} TO STDOUT") as copy:
                data = [bytes(each) for each in copy]
            connection.execute(f"CREATE TABLE public.copied (LIKE {name} INCLUDING ALL)")
            began, cpu = time.perf_counter(), time.process_time()
            with connection.transaction(), connection.cursor().copy("COPY public.copied FROM STDIN") as copy:
                for start in range(0, len(data), 2_000):
                    copy.write(b"".join(data[start : start + 2_000]))
            wall_s, cpu_s = wall_s + time.perf_counter() - began, cpu_s + time.process_time() - cpu
            connection.execute("DROP TABLE public.copied")
    return Took(count, rows, wall_s, cpu_s)
