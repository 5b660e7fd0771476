"""Exceptions are restored from a recording with their class and text."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import types
from pathlib import Path

import pytest

from refold.agents.journal.record import Failure
from refold.agents.recorder.failures import RecordedFailure, failure_of, raised
from refold.avro.errors import UnknownEntity, ValidationError


class Outer:
    class Inner(ValueError):
        pass


class Picky(Exception):
    """An exception whose constructor takes other arguments than its text."""

    def __init__(self, code: int, *, reason: str) -> None:
        super().__init__(code, reason)
        self.code = code
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.code}: {self.reason}"


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


def _json_error() -> Exception:
    try:
        json.loads("{")
    except ValueError as error:
        return error
    raise AssertionError


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"), ValueError(), KeyError("a"), KeyError("it's"), OSError(2, "No such file", "x"),
        TimeoutError(), ConnectionResetError(104, "reset"), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
        _json_error(), Outer.Inner("x"), Picky(503, reason="down"), StopIteration(3),
        subprocess.CalledProcessError(1, ["x"]), UnknownEntity("no such"), ValidationError("a", "rule", 5),
        ExceptionGroup("many", [ValueError("a"), KeyError("b")]),
        asyncio.CancelledError(), asyncio.CancelledError("why"), KeyboardInterrupt(), SystemExit(3), ValueError("a", 1),
    ],
    ids=repr,
)  # fmt: skip
def test_exception_is_raised_again_with_its_class_and_text(error: BaseException) -> None:
    failure = failure_of(error, 5)
    again = raised(failure)
    assert isinstance(again, type(error))
    assert str(again) == str(error)
    assert failure_of(again, 5).exception == failure.exception  # the chain of hashes covers it
    with pytest.raises(type(error)):
        raise again


class Closing(Exception):
    """An exception that does something when it is destroyed."""

    def __del__(self) -> None:
        closed.append(self)


closed: list[object] = []


@pytest.mark.parametrize(
    "error", [type("Gone", (Exception,), {"__module__": "no.such.module"})("text"), Closing("text")], ids=repr
)
def test_exception_of_an_unavailable_class_is_named(error: Exception) -> None:
    failure = failure_of(error, 5)
    again = raised(failure)
    assert isinstance(again, RecordedFailure)
    assert (type(again).__name__, str(again), again.failure) == (type(error).__name__, str(error), failure)
    assert failure_of(again, 5).exception == failure.exception


def test_recorded_class_is_looked_up_only_in_loaded_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "not_imported.py").write_text("class Trap(Exception): pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    asked: list[str] = []
    lazy = types.ModuleType("lazy_module")
    lazy.__dict__["__getattr__"] = asked.append
    monkeypatch.setitem(sys.modules, lazy.__name__, lazy)
    for name in ("not_imported.Trap", "lazy_module.Trap", "os.system", "builtins.print", "builtins.int", "os"):
        again = raised(Failure(name, "text"))
        assert isinstance(again, RecordedFailure), name
        assert (type(again).__name__, str(again)) == (name.rpartition(".")[2], "text")
    assert "not_imported" not in sys.modules
    assert asked == []


@pytest.mark.parametrize(("error", "said"), [(Mute(), "RuntimeError"), (ValueError("a\ud800b"), "a\\ud800b")])
def test_text_that_no_log_can_hold_is_recorded_in_another_form(error: Exception, said: str) -> None:
    failure = failure_of(error, 5)
    assert said in failure.message
    failure.traceback.encode()
    raised(failure)
