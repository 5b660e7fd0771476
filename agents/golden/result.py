"""Judge what an agent did against a golden trace. Pure; the messages say what to do."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from refold.agents.golden.check import unmet
from refold.agents.golden.expect import expectation
from refold.agents.golden.file import Golden
from refold.agents.golden.run_summary import RunSummary
from refold.agents.journal.matching import compared_requests, matchings
from refold.agents.journal.record import Plain, Recording
from refold.agents.replay.first_mismatch import FirstMismatch, parting
from refold.avro.errors import InputError


@dataclass(frozen=True, slots=True)
class UnmetExpectation:
    """An expectation that is not met, and the value found instead: in one line or several."""

    expect: str
    found: str


@dataclass(frozen=True, slots=True)
class CheckResult:
    """How today's agent did.

    Attributes:
        stopped: The request that had no answer; "" if every request had one.
        parting: The first difference from what was recorded, if the run reached its end.
    """

    golden: Golden
    agent: str
    did: RunSummary
    unmet: tuple[UnmetExpectation, ...]
    stopped: str
    parting: FirstMismatch | None

    @property
    def meets(self) -> bool:
        """Whether it did what is expected."""
        return not (self.unmet or self.stopped)

    @property
    def passed(self) -> bool:
        """Whether the test passed: it meets the expectations; if `must_fail` is set, it misses them."""
        return self.meets != bool(self.golden.must_fail)

    def __str__(self) -> str:
        """For people, in several lines."""
        return "\n".join(self._lines())

    @property
    def uncompared(self) -> list[str]:
        """Return the parts of requests that were not compared, in the recording or now."""
        return matchings(compared_requests(self.golden.run, self.did.recording))

    @property
    def tree(self) -> Plain:
        """Return the result for programs, as JSON."""
        return {
            "name": self.golden.name,
            "passed": self.passed,
            "must_fail": self.golden.must_fail,
            "agent": self.agent,
            "outcome": self.did.outcome,
            "tools": self.did.tools,
            "hash": self.did.hash,
            "recorded_hash": self.golden.run.hash,
            "unmet": [{"expect": each.expect, "found": each.found} for each in self.unmet],
            "stopped": self.stopped,
            "parting": None if self.parting is None else str(self.parting),
            "uncompared": self.uncompared,
        }

    def _lines(self) -> Iterator[str]:
        golden = self.golden
        if self.meets:
            yield f"{golden.name}: {self.agent} does what is expected"
            if golden.must_fail:
                yield f"  It was expected not to yet ({golden.must_fail}): take must_fail out of the file, and sign it"
            yield from (f"  not compared  {each}" for each in self.uncompared)
            return
        yield f"{golden.name}: {self.agent} does not do what is expected"
        for text in (golden.description, golden.must_fail and f"Known: {golden.must_fail}"):
            yield from textwrap.wrap(text, 100, initial_indent="  ", subsequent_indent="  ")
        for each in self.unmet:
            yield f"  expected  {each.expect}"
            yield from _block("found     ", each.found)
        if self.stopped:
            yield from _block("stopped   ", self.stopped)
            yield f"  until then it called {', '.join(self.did.tools) or 'no tool'}"
        if self.parting is not None:
            first, *rest = str(self.parting).splitlines()
            yield f"  parts from the recording at {first}"
            yield from (f"    {line.strip()}" for line in rest)
        yield from (f"  not compared  {each}" for each in self.uncompared)


def judged(golden: Golden, agent: str, did: Recording, stopped: str) -> CheckResult:
    """Judge a run of an agent.

    Args:
        golden: The golden trace.
        agent: The agent's name.
        did: What it did.
        stopped: The departure that ended it, if any.
    """
    done = RunSummary(did)
    found = []
    if not stopped:  # it would be chance whether a run that did not finish meets expectations
        for text in golden.expect:
            problem = unmet(expectation(text), done, golden.run.hash)
            found += [UnmetExpectation(text, problem)] if problem else []
    return CheckResult(golden, agent, done, tuple(found), stopped, None if stopped else parting(did, golden.run))


def admitted(golden: Golden) -> Golden:
    """Return the golden trace if it works as a test. InputError if not, with what to do.

    1. Its run has code that can be run, and every expectation can be parsed.
    2. A run that did not end cannot be expected to be repeated exactly.
    3. The recorded run meets the expectations; if it was kept because it was wrong (known_bad), it does not: a test
       that the bad run passes would show nothing.
    """
    run = golden.run
    if not run.has_code:
        raise InputError(f"run {run.run} was imported, and has no code that could be run against it")
    expected = [expectation(text) for text in golden.expect]
    if not expected:
        raise InputError("no expectation is given: give --expect outcome=succeeded, or leave it out for --expect exact")
    if not run.outcome and any(each.subject == "exact" for each in expected):
        raise InputError(
            f"run {run.run} did not end, so `exact` cannot be checked; give the expectations with --expect"
        )
    missed = [(each.text, problem) for each in expected if (problem := unmet(each, RunSummary(run), run.hash))]
    if missed and not golden.known_bad:
        text, problem = missed[0]
        raise InputError(
            f"run {run.run} itself does not satisfy {text}: {' '.join(problem.split())}. If that is the run's error, "
            "say so with --known-bad WHY"
        )
    if golden.known_bad and not missed:
        raise InputError(
            f"run {run.run} satisfies every expectation, so this test could not tell good code from bad "
            f"({golden.known_bad}): add the expectation that it misses"
        )
    return golden


def _block(head: str, text: str) -> Iterator[str]:
    """Yield a text's lines after a heading, aligned."""
    first, *rest = text.splitlines()
    yield f"  {head}{first}".rstrip()
    yield from (f"  {' ' * len(head)}{line}".rstrip() for line in rest)
