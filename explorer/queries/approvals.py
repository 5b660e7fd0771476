"""What policies ask people about: what `refold approvals` answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from refold.agents.log import AgentLog
from refold.agents.policy.decision_log import ApprovalQuestion
from refold.explorer.queries.query import options_of


def question_json(question: ApprovalQuestion) -> dict[str, Any]:
    """A question, and its answer where there is one."""
    return {**question._asdict(), "approval": question.approval._asdict()}


@dataclass(frozen=True, slots=True)
class ApprovalsQuery:
    """The calls that wait for a person. all_too: also those that have an answer."""

    all_too: bool = False

    @property
    def arguments(self) -> list[str]:
        """`refold approvals`."""
        return ["approvals", *options_of({"all": self.all_too})]

    def answer(self, log: AgentLog) -> list[dict[str, Any]]:
        """Each question, the oldest first."""
        return [question_json(each) for each in log.questions(all_too=self.all_too)]
