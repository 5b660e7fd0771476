"""The fuzzed process. It runs one command line after another, and reports the result of each.

A line of JSON on standard input: {"arguments", "folder", "log", "debug"}. A line of JSON on the first standard output:
{"status", "out", "err", "peak_bytes"}. Its address space is limited, so that excessive memory use is a MemoryError here
instead of exhausting the machine.
"""

from __future__ import annotations

import io
import json
import os
import resource
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout

ADDRESS_SPACE_BYTES = 6 << 30
SHOWN = 20_000


def main() -> None:
    """Run requests until standard input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))
    questions, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    for line in questions:
        asked = json.loads(line)
        os.chdir(asked["folder"])
        os.environ["REFOLD_LOG"] = asked["log"]
        os.environ["REFOLD_DEBUG"] = "1" if asked["debug"] else ""
        status, out, err = ran(asked["arguments"])
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps({"status": status, "out": out[:SHOWN], "err": err[-SHOWN:], "peak_bytes": peak}), file=answers)
        answers.flush()


def ran(arguments: list[str]) -> tuple[int, str, str]:
    """Run one command line, or one call `@NAME FILE` of refold_tests.fuzz.readers."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="strict", write_through=True)
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace", write_through=True)
    given, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(b""))
    try:
        with redirect_stdout(out), redirect_stderr(err):
            status = _called(arguments)
    finally:
        sys.stdin = given
    parts = []
    for stream in (out, err):
        assert isinstance(stream.buffer, io.BytesIO)
        parts.append(stream.buffer.getvalue().decode(errors="replace"))
    return status, parts[0], parts[1]


def _called(arguments: list[str]) -> int:
    try:
        if arguments[0].startswith("@"):
            from refold_tests.fuzz.readers import call

            return call(arguments[0][1:], arguments[1])
        from refold.explorer.cli.main import run

        return run(arguments)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
        return 70


if __name__ == "__main__":
    main()
