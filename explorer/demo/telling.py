"""The five answers as text: what the log says, put so that a first reader can follow."""

from __future__ import annotations

from collections import Counter

import refold
from refold.explorer.demo import answers
from refold.explorer.demo.checks import Checks
from refold.explorer.demo.deployer import OVERWRITTEN, RELEASED
from refold.explorer.demo.names import CONFIG, CRASH, DEPLOYED, DEPLOYER, EVALUATION, PIPELINE, SESSION
from refold.explorer.demo.page import ID_DIGITS, Page, clock
from refold.explorer.demo.words import brief

NEAR = 3
"""How many causes away from the verdict a source is still listed."""
TIMELINE = 10


def tell_replay(
    page: Page, checks: Checks, log: refold.Log, view: refold.StateView, last: answers.LastWord
) -> None:
    """1: the pipeline version by version, against what the agent noted; then every entity, against the live tables."""
    page.head("1  What did the pipeline go through?")
    page.line(f"   Every version of {PIPELINE}, computed again from the log; no tool is called.")
    page.line("   While it lived, the agent noted the state hash it saw after each stretch of work.")
    replayed = answers.replay(log, view)
    noted = [each for each in replayed if each.noted]
    page.table(
        ("version", "time", "what happened", "failed tries", "state hash", "agent noted"),
        [(f"v{each.version}", clock(each.at), each.what, "" if each.failed_tries is None else str(each.failed_tries),
          each.state_hash[:ID_DIGITS], _compared(each)) for each in replayed],
    )  # fmt: skip
    checks.equal(
        "states noted by the agent", [each.noted for each in noted], [each.state_hash for each in noted]
    )
    state, live, verdict = view[PIPELINE], answers.live_hashes(log), log.verify()
    matches = checks.equal(
        "the agent's last state", (last.version, last.state_hash), (state.version, state.state_hash)
    )
    page.line()
    page.verdict(f"state {'matches' if matches else 'differs'} v{state.version}  ", matches, state.state_hash)
    checks.equal("state hashes of the live tables", live, view.entity_hashes())
    checks.equal("mismatches found by verify", [], verdict.mismatches)
    deterministic = not checks.differing
    page.verdict(f"deterministic: {'yes' if deterministic else 'no'}  ", deterministic,
                 f"all {len(view)} entities have the hash they had before the agent died" if deterministic else "")  # fmt: skip


def _compared(each: answers.Replayed) -> str:
    return "" if not each.noted else "same" if each.noted == each.state_hash else each.noted[:ID_DIGITS]


def tell_changes(page: Page, checks: Checks, log: refold.Log, view: refold.StateView) -> None:
    """2: the silent overwrite, field by field, and that the agent never learned of it."""
    page.head(f"2  What changed on {CONFIG} since @{DEPLOYED}?")
    rows = log.history(CONFIG, since=f"@{DEPLOYED}", until=view.cut)
    page.table(
        ("field", "old", "new", "time", "by", "observation"),
        [(row.field, str(row.old), str(row.new), clock(row.observed_at), row.source.agent, row.observation[:ID_DIGITS])
         for row in rows],
    )  # fmt: skip
    made = {(name, RELEASED[name], new, DEPLOYER) for name, new in OVERWRITTEN.items()}
    checks.equal(
        f"changes since @{DEPLOYED}", made, {(row.field, row.old, row.new, row.source.agent) for row in rows}
    )
    stale = answers.stale_read(view)
    if checks.equal("a stale read is found", True, stale is not None) and stale is not None:
        page.line()
        page.line(
            f"   The agent had read v{stale.read_version} in its first step and planned by that; v{stale.version} was in force."
        )


def tell_evaluation(page: Page, checks: Checks, view: refold.StateView, state_hash: str) -> None:
    """3: the verdict, the state it is about, and its sources, nearest first."""
    evaluation = view[EVALUATION]
    fields = evaluation.fields
    page.head("3  Why did the evaluation fail?")
    page.line(f"   {fields['rationale']} Score {fields['score']}, needed {fields['threshold']}.")
    page.line(
        f"   It judged {fields['subject']} v{fields['subject_version']}, state {fields['subject_state_hash'][:ID_DIGITS]},"
    )
    page.line("   and names what it rests on; that names its own causes, and so on:")
    checks.equal("the state that was judged", state_hash, fields["subject_state_hash"])
    chain = evaluation.why("passed")
    checks.equal(
        "sources that are not in the log", [], [each.observation for each in chain if each.statement is None]
    )
    rows = [
        (str(each.depth), each.statement.entity, brief(each.statement), each.statement.source.agent, str(each.position),
         each.observation[:ID_DIGITS])
        for each in chain if each.statement is not None and each.depth <= NEAR
    ]  # fmt: skip
    page.table(("away", "source", "says", "by", "log at", "observation"), sorted(rows), marked={CONFIG})
    entities = [each.statement.entity for each in chain if each.statement is not None]
    checks.equal("the overwrite is among the sources", True, CONFIG in [row[1] for row in rows])
    page.line(f"   and {len(chain) - len(rows)} more behind these, back to the beginning of {entities[-1]}")


def tell_crash(
    page: Page, checks: Checks, log: refold.Log, view: refold.StateView, crashed_at: int, kept: int
) -> None:
    """4: the world at the moment of the crash, and the way there."""
    page.head(f"4  What was the state when the agent died, at {clock(crashed_at)}?")
    checks.equal("acknowledged observations in the log", kept, view.observations)
    kinds = Counter(entity.partition("/")[0] for entity in view).most_common()
    counts = ", ".join(f"{count} of type {kind}" for kind, count in kinds[:3])
    page.line(f"   {view.observations} observations stand behind it: all that were acknowledged, none lost.")
    page.line(
        f"   {len(view)} entities: {counts}, {sum(count for _, count in kinds[3:])} others. Those that matter here:"
    )
    open_call = answers.unanswered(view)
    names = [PIPELINE, SESSION, CONFIG]
    if (
        checks.equal("a call without an answer is found", True, open_call is not None)
        and open_call is not None
    ):
        names += [open_call.entity, f"document/refund-{open_call.fields['inputs']['claim']}"]
    page.table(
        ("entity", "version", "state"),
        [(each, f"v{view[each].version}", _stands(view[each])) for each in names],
    )
    moments = [
        (clock(each.at), each.entity, each.text, each.agent)
        for each in answers.timeline(log, view.cut, names)
    ]
    page.table(
        ("time", "entity", "what happened", "by"),
        [*moments[-TIMELINE:], (clock(crashed_at), "", "kill -9", "")],
        marked={CONFIG},
    )


def _stands(entity: refold.EntityView) -> str:
    """Where an entity stands, in a few of its fields."""
    fields = entity.fields
    if entity.entity == PIPELINE:
        done = fields["outputs"]
        return f"{fields['status']}: step {fields['position']} of {fields['position_total']}, {fields['current_step']}, " \
               f"{done['paid']} of {done['approved']} paid"  # fmt: skip
    if entity.entity == CONFIG:
        return ", ".join(f"{name} {fields[name]}" for name in OVERWRITTEN)
    if "tool" in fields:
        return f"{fields['status']}: {fields['tool']} for claim {fields['inputs']['claim']}, no answer"
    return str(fields["fields"]["status"] if "fields" in fields else fields["status"])


def tell_clocks(
    page: Page, checks: Checks, log: refold.Log, view: refold.StateView, at: str, document: str
) -> None:
    """5: the same moment by two clocks: what the log knew then, and what it now knows to have been true then."""
    page.head("5  What was known at that moment, and what was true?")
    known, true = log.state(document, f"@{CRASH}"), log.state(document, at, "observed")
    page.line("   Later the provider's statement came in: the last payment had gone through after all.")
    rows = [
        (name, each.fields["fields"]["status"], each.fields["fields"].get("reference", ""))
        for name, each in (("known then", known), ("true then", true))
    ]
    page.table((document, "status", "reference"), rows)
    checks.equal(f"{document} known, and true", ["approved", "paid"], [row[1] for row in rows])
    checks.equal(f"the root at @{CRASH}, asked again", view.root, log.rebuild(f"@{CRASH}").root)
