"""pytest --refold-golden DIR: each golden trace is a test, and tests have the fixtures `golden` and `replay`.

    def test_refunds_once(golden, replay):
        did = replay(golden["paid-four-times"])
        assert did.tools[-1] == "send_mail"
        assert did.count("refund") == 3
        assert did.state_at(1)["case"]["status"] == "open"

1. The folders are collected in addition to pytest's own arguments. Each *.golden.json in them is one test: it runs the
   agent that the file names, or the one of --refold-agent, and passes if the expectations hold.
2. Agents are imported from the folder in which pytest is run, as `refold golden run` does.
3. With --refold-confined every agent, also one passed to `replay`, runs in a process that the kernel confines.
4. Without --refold-golden none of this is loaded: src/pytest_refold.py loads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from refold.agents.confined.files import unrestricted_files
from refold.agents.entry import Agent, agent_of, entry_for, recorded_agent_of
from refold.agents.golden.file import SUFFIX, Golden, found, read
from refold.agents.golden.result import CheckResult
from refold.agents.golden.run_summary import RunSummary
from refold.agents.golden.runner import driven, driven_confined, exercised
from refold.avro.errors import InputError, RefoldError

MARK = "refold_golden"


class NotAsExpected(Exception):
    """A golden trace's test failed."""

    def __init__(self, verdict: CheckResult) -> None:
        self.verdict = verdict
        super().__init__(str(verdict))


class Goldens(Mapping[str, Golden]):
    """Golden traces by the names of their files, each read on first use."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._files: dict[str, Path] = {}
        for path in files:
            other = self._files.setdefault(path.name.removesuffix(SUFFIX), path)
            if other != path:
                raise InputError(f"two golden traces have one name: {other} and {path}; rename one of them")

    def __getitem__(self, name: str) -> Golden:
        if name not in self._files:
            raise KeyError(f"no golden trace {name!r}; there are {', '.join(sorted(self)) or 'none'}")
        return read(self._files[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def pytest_configure(config: pytest.Config) -> None:
    """Add the folders to what pytest collects."""
    config.addinivalue_line("markers", f"{MARK}: an agent's golden trace, of --refold-golden")
    for folder in _folders(config):
        if not folder.is_dir():
            raise pytest.UsageError(f"--refold-golden {folder}: no such folder")
        if str(folder) not in config.args:
            config.args.append(str(folder))


def pytest_report_header(config: pytest.Config) -> str:
    """Report the folders, and whether agents are confined."""
    line = f"refold: golden traces in {', '.join(map(str, _folders(config)))}"
    if not _is_confined(config):
        return line
    what = unrestricted_files()
    return f"{line}; confined{f', but {what}' if what else ''}"


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect the golden traces in the folders."""
    is_golden = file_path.name.endswith(SUFFIX) and not file_path.name.startswith(".")
    if is_golden and any(file_path.is_relative_to(folder) for folder in _folders(parent.config)):
        return GoldenFile.from_parent(parent, path=file_path)
    return None


class GoldenFile(pytest.File):
    """A golden trace's file."""

    def collect(self) -> Iterable[pytest.Item]:
        """Yield its one test."""
        item = GoldenItem.from_parent(self, name=self.path.name.removesuffix(SUFFIX))
        item.add_marker(MARK)
        yield item


class GoldenItem(pytest.Item):
    """A golden trace as a test."""

    def runtest(self) -> None:
        """Run the agent, and check the expectations.

        Raises:
            NotAsExpected: One does not hold.
        """
        verdict = exercised(
            read(self.path), self.config.invocation_params.dir, self.config.getoption("--refold-agent") or "",
            confined=_is_confined(self.config),
        )  # fmt: skip
        if not verdict.passed:
            raise NotAsExpected(verdict)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Show what differs, without a traceback through refold."""
        if isinstance(excinfo.value, NotAsExpected | RefoldError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return its location."""
        return self.path, None, f"golden trace {self.name}"


@pytest.fixture(scope="session")
def golden(pytestconfig: pytest.Config) -> Goldens:
    """Return the golden traces of --refold-golden, by name."""
    return Goldens(_files(pytestconfig))


@pytest.fixture(scope="session")
def replay(pytestconfig: pytest.Config) -> Callable[..., RunSummary]:
    """Return replay(golden, agent=None): it runs an agent's function against a golden trace, and returns what it did.

    agent: a function, else the one of --refold-agent, else the one that the file names. A request without an answer is
    raised (Unrecorded), with the nearest recorded request. With --refold-confined another process must be able to find
    the function by name.
    """

    def run(trace: Golden, agent: Agent | None = None) -> RunSummary:
        base = pytestconfig.invocation_params.dir
        given = pytestconfig.getoption("--refold-agent") or ""
        if _is_confined(pytestconfig):
            did, departure = driven_confined(trace, given if agent is None else entry_for(agent), base)
        else:
            if agent is None:
                agent = agent_of(given, base) if given else recorded_agent_of(trace.entry, base)
            did, departure = driven(trace, agent, base)
        if departure is not None:
            raise departure
        return RunSummary(did)

    return run


def _is_confined(config: pytest.Config) -> bool:
    return bool(config.getoption("--refold-confined"))


def _folders(config: pytest.Config) -> list[Path]:
    return [config.invocation_params.dir.joinpath(each).resolve() for each in config.getoption("--refold-golden")]


def _files(config: pytest.Config) -> Iterator[Path]:
    for folder in _folders(config):
        yield from found(folder)
