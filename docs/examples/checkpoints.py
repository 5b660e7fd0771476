"""Checkpoints: an agent whose process is killed in its fifth step goes on in the fifth, from the log alone.

    python checkpoints.py

1. A process of its own runs the agent, and is killed (SIGKILL) in step 5, right after it sent a mail.
2. This one resumes the run. Steps 1 to 4 are not run again. Step 5 is, and what it had looked up is answered from the
   log. It gets the result of its mail, which is not sent again.
3. Each step is a checkpoint: the state after it can be read by its number, and a run can be forked from there. What is
   stored of it is what the step changed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import refold
from refold.compare import state_at

LOG = "file:.refold"
RUN = "research-1"
DONE = Path("done.txt")  # what was really done, by whichever process
TOPICS = ("logs", "tables", "joins", "windows", "state", "time")


@refold.tool(effect="read")
def search(topic: str) -> str:
    """Look something up."""
    note(f"search {topic}")
    return f"{topic}: " + "all there is to know. " * 20


@refold.tool(effect="write")
def send_mail(topic: str, *, idempotency_key: str = "") -> str:
    """Tell somebody; the key is the same for the same mail, so that the other side can tell, too."""
    note(f"mail {topic}")
    return f"sent, {idempotency_key.split(':')[2]}"


def note(line: str) -> None:
    """Keep a line of what was done."""
    with DONE.open("a") as file:
        file.write(f"{line} by {os.getpid()}\n")


def study(run: refold.Run, topic: str, is_fatal: bool) -> int:
    """One step: look a topic up, keep what was found, tell somebody."""
    run.state["notes"].append(search(topic))
    send_mail(topic)
    if is_fatal:
        os.kill(os.getpid(), signal.SIGKILL)
    return len(run.state["notes"])


def agent(run: refold.Run, dies_at: str = "") -> dict[str, int]:
    """Six topics, one after the other."""
    for topic in TOPICS:
        run.step(topic, study, run, topic, topic == dies_at)
    return {"topics": len(run.state["notes"])}


def main() -> None:
    """Run it, have it killed, and go on."""
    child = subprocess.run([sys.executable, __file__, "first"], check=False)
    print(f"the first process was killed by signal {-child.returncode}")

    with refold.open(LOG) as log:
        committed = [step.name for step in log.recording(RUN).steps if step.is_committed]
        print(f"committed: {', '.join(committed)}")
        print(f"resumed, it ends with {log.run('', resume=RUN).drive(agent)}")

        done = [line.split(" by ")[0] for line in DONE.read_text().splitlines()]
        print(f"done twice: {', '.join(sorted({each for each in done if done.count(each) > 1})) or 'nothing'}")
        assert [line for line in done if line.startswith("mail")] == [f"mail {topic}" for topic in TOPICS]

        print("\nstep  name     stored of it  state after it")
        recording = log.recording(RUN)
        for step in recording.steps:
            state = state_at(recording, step.number)
            sizes = len(json.dumps(step.delta)), len(json.dumps(state))
            print(f"{step.number:>4}  {step.name:7}  {sizes[0]:>6} bytes  {sizes[1]:>9} bytes")

        third = state_at(recording, 3)
        print(f"\nbehind step 3 it knew of {', '.join(each.split(':')[0] for each in third['notes'])}")


if __name__ == "__main__":
    if sys.argv[1:] == ["first"]:
        with refold.open(LOG) as log:
            run = log.run("researcher", id=RUN, state={"notes": []}, entry="checkpoints:agent")
            run.drive(lambda run: agent(run, dies_at="state"))
    else:
        main()
