"""Heal a run: try a remedy on a copy, prove it, and only then let the run itself continue with it.

The steps of one attempt. Each transition is an observation of the entity `healing/<run>.<n>`, durable before the next
step begins (agents/heal/healings.py):

1. Diagnose the run (agents/heal/examine.py, diagnosis.py). If it has an attempt that has not ended, continue with that
   one: to 3 if it is `begun`, to 5 if it is `proved`, to 6 if it is `waiting`, to 7 if it is `resuming`.
2. Choose the first remedy of the plan that is for a finding and was not tried for it yet. Record `begun`. If the
   attempts of the run, or of its agent within the last hour, are used up, or no remedy is left: record `stopped`.
3. Fork the run after its last good step, with the remedy and with writes closed, and run the agent's code in the fork.
4. Check the fork against what is expected, and today's code against the golden traces of the agent. Record `proved` or
   `refuted`. After `refuted` nothing but the fork has changed: go to 2.
5. If the remedy needs a person: ask the question, then record `waiting`, and end here. The command is run again after
   the answer.
6. Read the answer. Record `rejected`, or continue.
7. Record `resuming`, with the id of the run that continues. It is the run itself if nothing of it changes (function and
   version included) and no committed step is left out. Otherwise it is its continuation
   (agents/replay/forked.py), whose id is derived from the attempt's.
8. Resume the run; or begin the continuation, or resume it if it was begun before. If it has ended since 7, skip this.
9. Record `healed` or `failed`, with what it cost, and link the run to the one that continued.

Transitions, each recorded: begun, refuted, proved, waiting, rejected, resuming, healed, failed, stopped. Acts between
them: the fork, the question, the run's resume or the continuation's begin, its writes, the link.
tests/agents/heal/test_killed.py kills a process before or after each.

Killed between any two, `apply` continues at 1. A killed fork wrote nothing: it is left, and another one is made. A
question is asked once. A killed run or continuation is resumed, so its writes have the same keys, and the ledger of
effects makes none of them twice. The caller of `apply` has the lease on healing the run (lease.py), so no other process
heals it at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from refold.agents.entry import Agent, agent_of, require_known
from refold.agents.golden.check import unmet
from refold.agents.golden.expect import expectation
from refold.agents.golden.run_summary import RunSummary
from refold.agents.golden.runner import exercised
from refold.agents.heal.diagnosis import Diagnosis, Evidence, RunFinding, diagnose, last_good
from refold.agents.heal.examine import examine, golden_of
from refold.agents.heal.healings import SOURCE, Healing, HealingLog, healings
from refold.agents.heal.plan import DeclaredRemedy, HealPlan
from refold.agents.heal.registered import RemedyChange, remedy_named
from refold.agents.journal.record import Recording
from refold.agents.log import AgentLog
from refold.agents.policy.decision_log import HEAL_QUESTION, approval_of, ask_person
from refold.agents.policy.guard import TAG
from refold.agents.policy.rules import Policy
from refold.agents.recorder.observations import run_entity
from refold.agents.recorder.run import Run
from refold.agents.redaction.redactor import Redact
from refold.agents.replay.patch import read_patch
from refold.agents.usage.of_runs import summed, usage_of_run
from refold.avro.errors import InputError

HOUR_MICROS = 3_600_000_000
LINK = "healed_by"
NOT_HEALED = ("unknown_effect", "question")


@dataclass(frozen=True, slots=True)
class HealSetting:
    """How the agent's code is run.

    Attributes:
        entry: Its name, module:function, in place of the one that the run names.
        drive: Runs an agent's function to its end, and returns the exception that it raised, if any.
        redact: The redactor of the recording.
        base: The folder that code is found from.
        supervised: The agent in whose place this process heals its runs.
    """

    drive: Callable[[Run, Agent], Exception | None]
    entry: str = ""
    redact: Redact | None = None
    base: Path = field(default_factory=Path.cwd)
    supervised: str = ""


@dataclass(frozen=True, slots=True)
class Remediable:
    """A remedy that is for a finding, and the step after which the run would continue."""

    remedy: DeclaredRemedy
    finding: RunFinding
    change: RemedyChange
    at: int


class Healer:
    """Heals runs of one log by a plan."""

    def __init__(self, log: AgentLog, plan: HealPlan, setting: HealSetting) -> None:
        """Prepare.

        Args:
            log: The log.
            plan: The remedies.
            setting: How the agent's code is run.
        """
        self._log = log
        self._plan = plan
        self._setting = setting
        self._now_micros = log.now_micros

    def diagnosis(self, run: str) -> Diagnosis:
        """Return what is wrong with a run."""
        return diagnose(self._examine_run(run))

    def _examine_run(self, run: str) -> Evidence:
        agent = self._log.recording(run).agent
        policy = Policy.load(self._plan.guard) if self._plan.guard else None
        golden = [each for _, each in golden_of(self._plan.golden, agent)]
        return examine(self._log, run, policy=policy, golden=golden, supervised=self._setting.supervised)

    def remedies(self, run: Recording, diagnosis: Diagnosis, tried: Iterable[str] = ()) -> list[Remediable]:
        """Return the remedies that could be applied, in the order of the plan.

        Args:
            run: The run.
            diagnosis: What is wrong with it.
            tried: The names of remedies that were tried before.

        Raises:
            InputError: A remedy names a function that is not registered, or code that is in none of the user's folders.
        """
        found = []
        for remedy in self._plan.remedy:
            finding = None if remedy.name in tried else remedy.finding(diagnosis)
            change = RemedyChange(remedy.state, remedy.drop, remedy.arguments)
            if finding is not None and remedy.do == "function":
                made = self._registered_change(run, diagnosis, remedy)
                if made is None:
                    continue
                change = made
            if finding is not None:
                if remedy.entry:
                    require_known(remedy.entry, self._setting.base)
                at = finding.at if change.at is None else last_good(run, change.at + 1)
                found.append(Remediable(remedy, finding, change, at))
        return found

    def _registered_change(self, run: Recording, diagnosis: Diagnosis, remedy: DeclaredRemedy) -> RemedyChange | None:
        """Return what a registered function does about a run. The agent's module may register it."""
        agent_of(self._entry(run.run, remedy), self._setting.base)
        return remedy_named(remedy.function)(run, diagnosis)

    def apply(self, run: str) -> list[Healing]:
        """Heal a run: see the steps above.

        Args:
            run: The run's id.

        Returns:
            The attempts of this call, in order; the last one has the present state. Empty if there is nothing to heal.

        Raises:
            InputError: The run cannot be healed, and the message says why; or its code cannot be found.
        """
        attempts: list[Healing] = []
        while True:
            before = healings(self._log, run)
            open_one = next((each for each in before if each.is_open), None)
            if open_one is not None:
                attempt = HealingLog(self._log, self._now_micros, open_one)
                remedy: Remediable | None = self._remedy(open_one)
            else:
                begun = self._begin_attempt(run, before)
                if begun is None:
                    return attempts
                attempt, remedy = begun
            if remedy is not None:
                self._attempt(attempt, remedy)
            attempts.append(attempt.healing)
            if attempt.healing.status != "refuted":
                return attempts

    def apply_or_stop(self, run: str) -> list[Healing]:
        """As `apply`. A run that cannot be healed gets an attempt with the status `stopped`, and the reason.

        Args:
            run: The run's id.

        Raises:
            InputError: Its recording cannot be read.
        """
        try:
            return self.apply(run)
        except InputError as error:
            recording, diagnosis = self._log.recording(run), self.diagnosis(run)
            return [self._record_stop(recording, diagnosis, healings(self._log, run), str(error)).healing]

    def _remedy(self, healing: Healing) -> Remediable:
        """Return the remedy of an attempt that was begun before.

        Raises:
            InputError: The plan no longer has it, a live process has the run, or the attempt is not refold's.
        """
        run = self._log.recording(healing.run)
        evidence = self._examine_run(healing.run)
        if evidence.held:
            raise InputError(evidence.held)
        _require_own(healing)
        named = [each for each in self._plan.remedy if each.name == healing.remedy]
        if not named:
            raise InputError(
                f"healing {healing.id} was begun with the remedy {healing.remedy!r}, which the plan no longer has: put "
                "it back, so that the attempt can end"
            )
        finding = RunFinding("error", "", healing.failure, healing.at_step)
        change = RemedyChange(named[0].state, named[0].drop, named[0].arguments)
        if named[0].do == "function":
            change = self._registered_change(run, diagnose(evidence), named[0]) or change
        return Remediable(named[0], finding, change, healing.at_step)

    def _begin_attempt(self, run: str, before: list[Healing]) -> tuple[HealingLog, Remediable | None] | None:
        """Take steps 1 and 2. Returns None if there is nothing to heal."""
        evidence = self._examine_run(run)
        recording, diagnosis = evidence.recording, diagnose(evidence)
        self._require(recording, diagnosis, before)
        if not diagnosis.findings:
            return None
        own = [each for each in before if each.status != "stopped"]
        counted = [*own, *self._earlier_attempts(recording)]
        since = self._now_micros() - HOUR_MICROS
        of_agent = [each for each in healings(self._log) if each.agent == recording.agent and each.status != "stopped"]
        recent = sum(each.started_at > since for each in of_agent)
        life = self._begin_count(recording)
        tried = {each.remedy for each in own if each.run_attempts == life and each.status != "failed"}
        choice = next(iter(self.remedies(recording, diagnosis, tried)), None)
        why = ""
        if len(counted) >= self._plan.attempts:
            why = f"{len(counted)} of {self._plan.attempts} attempts for a run are used up"
        elif recent >= self._plan.attempts_per_hour:
            why = (f"{recent} of {self._plan.attempts_per_hour} attempts within an hour are used up for "
                   f"{recording.agent}")  # fmt: skip
        elif choice is None:
            why = "no remedy of the plan is left for what was found"
        if why or choice is None:
            return self._record_stop(recording, diagnosis, before, why), None
        begun = HealingLog.begin(
            self._log, self._now_micros, diagnosis, choice.finding, choice.remedy, attempt=len(before) + 1,
            run_attempts=life, at_step=choice.at,
        )  # fmt: skip
        return begun, choice

    def _record_stop(self, run: Recording, diagnosis: Diagnosis, before: list[Healing], why: str) -> HealingLog:
        """Record that the run is left to a person; once for one reason."""
        if before and before[-1].status == "stopped" and before[-1].reason == why:
            return HealingLog(self._log, self._now_micros, before[-1])
        return HealingLog.begin(
            self._log, self._now_micros, diagnosis, None, None, attempt=len(before) + 1,
            run_attempts=self._begin_count(run), at_step=0, status="stopped", reason=why,
        )  # fmt: skip

    def _begin_count(self, run: Recording) -> int:
        """Return how often a run was begun."""
        begun: int = self._log.state(run_entity(run.run)).fields.get("attempts", 1)
        return begun

    def _earlier_attempts(self, run: Recording) -> list[Healing]:
        """Return the attempts for the runs that a continuation continues: it is about the same failure."""
        found: list[Healing] = []
        while run.parent and run.task:
            found += [each for each in healings(self._log, run.parent) if each.status != "stopped"]
            run = self._log.recording(run.parent)
        return found

    def _require(self, run: Recording, diagnosis: Diagnosis, before: list[Healing]) -> None:
        """Refuse what cannot be healed.

        Raises:
            InputError: Why.
        """
        if not run.has_code:
            raise InputError(f"run {run.run} was imported: there is no code that could go on with it")
        if run.caller:
            raise InputError(f"run {run.run} began within run {run.caller}: heal that run")
        if run.outcome == "succeeded":
            raise InputError(f"run {run.run} succeeded, so there is nothing to resume; to change it, fork it")
        if run.parent and not run.task:
            raise InputError(f"run {run.run} is a fork: heal run {run.parent}, or fork it again")
        if diagnosis.held:
            raise InputError(diagnosis.held)
        for finding in diagnosis.findings:
            if finding.kind in NOT_HEALED:
                raise InputError(f"run {run.run} cannot be healed yet: {finding.said}")
        later = [each for each in before if each.healed_by not in ("", run.run) and each.status in ("healed", "failed")]
        if later and later[-1].status == "healed":
            raise InputError(f"run {run.run} {later[-1].healed_text}, so there is nothing to heal")
        if later:
            raise InputError(f"run {run.run} goes on as run {later[-1].healed_by}: heal that one")
        under = next((tag.removeprefix(TAG) for tag in run.tags if tag.startswith(TAG)), "")
        if under and not self._plan.guard:
            raise InputError(
                f"run {run.run} was begun under the policy {under}: name its file in the plan, guard = FILE"
            )

    # One attempt

    def _attempt(self, attempt: HealingLog, choice: Remediable) -> None:
        """Take the steps that are left, from 3 on."""
        remedy = choice.remedy
        if attempt.healing.status == "begun" and remedy.do != "ask":
            self._prove(attempt, choice)
        if attempt.healing.status in ("begun", "proved") and (remedy.approve or remedy.do == "ask"):
            self._ask(attempt, choice)
        if attempt.healing.status == "waiting" and not self._is_approved(attempt):
            return
        if attempt.healing.status in ("begun", "proved", "waiting"):
            self._announce(attempt, choice)
        if attempt.healing.status == "resuming":
            self._continue_run(attempt, choice)

    def _prove(self, attempt: HealingLog, choice: Remediable) -> None:
        """Take steps 3 and 4."""
        healing, remedy, log = attempt.healing, choice.remedy, self._log
        number = 1
        while log.states([run_entity(_proof_id(healing, number))]):
            number += 1
        name = self._entry(healing.run, remedy)
        run = log.fork(
            healing.run, at=choice.at, id=_proof_id(healing, number), state=choice.change.state or None,
            drop=choice.change.drop, arguments=self._arguments(healing.run, choice.change),
            version=remedy.version or None, entry=name, tags=(f"healing:{healing.id}",), redact=self._setting.redact,
            guard=self._plan.policy(remedy), stand_ins=remedy.answers,
        )  # fmt: skip
        error = self._setting.drive(run, agent_of(name, self._setting.base))
        fork = log.recording(run.id)
        checks = []
        for text in (*self._plan.expect, *remedy.expect):
            checks.append({"check": text, "satisfied": not unmet(expectation(text), RunSummary(fork), "")})
        for path, golden in golden_of(self._plan.golden, fork.agent):
            result = exercised(golden, self._setting.base, name)
            checks.append({"check": f"golden {path.name}", "satisfied": result.passed})
        missed = [str(each["check"]) for each in checks if not each["satisfied"]]
        reason = f"the copy does not satisfy {', '.join(missed)}" if missed else "the copy satisfies what is expected"
        if missed and error is not None:
            reason += f"; it ended with {type(error).__name__}"
        last = log.state(run_entity(fork.run)).observations_of("outcome")
        attempt.note("refuted" if missed else "proved", reason, proof=fork.run, checks=checks, causes=[last[0].hex()],
                     **_cost(healing, [fork]))  # fmt: skip

    def _ask(self, attempt: HealingLog, choice: Remediable) -> None:
        """Take step 5. Asking again changes nothing: the question has the same id."""
        healing, log = attempt.healing, self._log
        question = _question_id(healing)
        reason = f"{choice.finding.said}; may the run go on after step {choice.at} with remedy {choice.remedy.name!r}?"
        if approval_of(log, question) is None:
            ask_person(log, question, HEAL_QUESTION, healing.run, healing.agent, SOURCE, reason, self._now_micros(),
                       [healing.last])  # fmt: skip
        attempt.note("waiting", f"refold approve {question}, or refold deny {question}", question=question)

    def _is_approved(self, attempt: HealingLog) -> bool:
        """Take step 6."""
        approval = approval_of(self._log, attempt.healing.question)
        if approval is not None and approval.decision == "rejected":
            attempt.note("rejected", f"rejected by {approval.by}")
        return approval is not None and approval.decision == "approved"

    def _announce(self, attempt: HealingLog, choice: Remediable) -> None:
        """Take step 7."""
        healing, change, remedy = attempt.healing, choice.change, choice.remedy
        run = self._log.recording(healing.run)
        kept = len(run.steps) - (1 if run.steps and run.steps[-1].outcome != "succeeded" else 0)
        # A run keeps the version and the function that it began with: a replay finds its code by them.
        changes = (change.state, change.drop, change.arguments, remedy.version, remedy.entry)
        is_as_it_was = not any(changes) and choice.at == kept
        attempt.note("resuming", healed_by=healing.run if is_as_it_was else _continuation_id(healing))

    def _continue_run(self, attempt: HealingLog, choice: Remediable) -> None:
        """Take steps 8 and 9."""
        healing, log, remedy = attempt.healing, self._log, choice.remedy
        name = self._entry(healing.run, remedy)
        given: dict[str, Any] = {"redact": self._setting.redact, "guard": self._plan.policy(remedy)}
        found = log.states([run_entity(healing.healed_by)]).get(run_entity(healing.healed_by))
        is_itself = healing.healed_by == healing.run
        begun = 0 if found is None else found.fields.get("attempts", 1)
        has_gone_on = begun > healing.run_attempts if is_itself else found is not None
        if not has_gone_on or log.recording(healing.healed_by).status != "ended":
            if is_itself or has_gone_on:
                run = log.run("", resume=healing.healed_by, **given)
            else:
                change = choice.change
                run = log.continued(
                    healing.run, at=choice.at, id=healing.healed_by, proof=healing.proof or None,
                    state=change.state or None, drop=change.drop, arguments=self._arguments(healing.run, change),
                    version=remedy.version or None, entry=name, tags=(f"healing:{healing.id}",), **given,
                )  # fmt: skip
            self._setting.drive(run, agent_of(name, self._setting.base))
        ended = log.recording(healing.healed_by)
        is_healed = ended.outcome == "succeeded"
        reason = f"run {ended.run} {ended.outcome or 'did not end'}"
        if not is_itself:
            log.link(run_entity(healing.run), LINK, run_entity(ended.run), source=SOURCE, causes=[healing.last])
        proof = [log.recording(healing.proof)] if healing.proof else []
        last = log.state(run_entity(ended.run)).observations_of("status")
        cost = _cost(healing, [*proof, ended])
        attempt.note("healed" if is_healed else "failed", reason, causes=[last[0].hex()], **cost)

    def _arguments(self, run: str, change: RemedyChange) -> dict[str, dict[str, Any]] | None:
        """Return the arguments of calls that a remedy changes, over those that an earlier one changed."""
        before = read_patch(self._log.recording(run).patch).arguments
        names = {*before, *change.arguments}
        return {name: {**before.get(name, {}), **change.arguments.get(name, {})} for name in names} or None

    def _entry(self, run: str, remedy: DeclaredRemedy) -> str:
        """Return the name of the agent's function.

        Raises:
            InputError: Nobody named it, or the log or the plan names one that is in none of the user's folders.
        """
        if remedy.entry:
            require_known(remedy.entry, self._setting.base)
            return remedy.entry
        name = self._setting.entry
        if not name:
            name = str(self._log.state(run_entity(run)).fields.get("entry", ""))
            if not name:
                raise InputError(f"run {run} names no agent: give its function with --agent module:function")
            require_known(name, self._setting.base)
        return name


def _require_own(healing: Healing) -> None:
    """Check that an attempt names no runs and no question but its own.

    Raises:
        InputError: Another program recorded it.
    """
    is_own = (
        healing.id == f"{healing.run}.{healing.attempt}"
        and (not healing.proof or healing.proof.startswith(_proof_id(healing, 1)))
        and healing.question in ("", _question_id(healing))
        and healing.healed_by in ("", healing.run, _continuation_id(healing))
    )
    if not is_own:
        raise InputError(f"healing {healing.id} names a run or question that is not its own: refold did not record it")


def _question_id(healing: Healing) -> str:
    return f"{healing.run}#{healing.at_step}.{HEAL_QUESTION}.{healing.attempt}"


def _continuation_id(healing: Healing) -> str:
    return f"{healing.id}.continued"


def _proof_id(healing: Healing, number: int) -> str:
    return f"{healing.id}.proof" + (f"-{number}" if number > 1 else "")


def _cost(healing: Healing, runs: Iterable[Recording]) -> dict[str, Any]:
    """Return what some runs' own calls used since an attempt began, as fields of the attempt."""
    found = summed(usage for run in runs for usage in usage_of_run(run, healing.started_at))
    if found is None:
        return {}
    used: dict[str, Any] = {"input_tokens": found.tokens.read, "output_tokens": found.tokens.output}
    return used if found.cost_usd is None else {**used, "cost_usd": found.cost_usd}
