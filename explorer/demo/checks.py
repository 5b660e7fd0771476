"""What must hold for the demo to have shown anything: computed twice, compared, and said where it differs."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Checks:
    """How many were made, and what differed."""

    made: int = 0
    differing: list[str] = field(default_factory=list)

    def equal(self, what: str, expected: object, found: object) -> bool:
        """Whether both are equal; remembered if not."""
        self.made += 1
        if expected != found:
            self.differing.append(f"{what}: expected {expected}, found {found}")
        return expected == found
