"""Runs the thread of thread.py with PostgresSaver and its defaults.

python postgres_saver.py URL STEPS. Prints the figures of `drive`, and the bytes of the tables with their indexes.
"""

from __future__ import annotations

import json
import sys

import psycopg
from langgraph.checkpoint.postgres import PostgresSaver
from thread import drive

SIZE = "select sum(pg_total_relation_size(relid))::bigint from pg_stat_user_tables"


def main() -> None:
    url = sys.argv[1]
    with PostgresSaver.from_conn_string(url) as saver:
        saver.setup()
        took = drive(saver, int(sys.argv[2]))
    with psycopg.connect(url) as connection:
        found = connection.execute(SIZE).fetchone()
    assert found is not None
    print(json.dumps({"took": took, "bytes": found[0]}))


if __name__ == "__main__":
    main()
