"""A keeper that kills itself at the moment that the first line of `moments`, a file beside its agent, names."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from refold.agents.supervise import keeper

MOMENTS = ("locked", "cleared", "started", "started is said", "ended", "ended is said")


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _after(owner: Any, name: str, die: Callable[[dict[str, Any]], None], *, before: bool = False) -> None:
    original = getattr(owner, name)

    def wrapped(*args: Any, **named: Any) -> Any:
        if before:
            die(named)
        result = original(*args, **named)
        if not before:
            die(named)
        return result

    setattr(owner, name, wrapped)


def main() -> int:
    """Keep an agent until that moment."""
    run = keeper.Keeper.run

    def run_until(self: keeper.Keeper) -> int:
        path = Path(self._order.work) / "moments"
        moment, _, rest = path.read_text().partition("\n")
        path.write_text(rest)
        if moment == "locked":
            _after(keeper.Keeper, "_locked", lambda named: _die())
        elif moment == "cleared":
            _after(keeper, "kill_until_none", lambda named: _die())
        elif moment == "started":
            _after(keeper.Keeper, "_start", lambda named: _die())
        elif moment == "started is said":
            _after(keeper, "_write_line", lambda named: _die() if "started" in named else None)
        elif moment:
            _after(keeper, "_write_line", lambda named: _die() if "ended" in named else None, before=moment == "ended")
        return run(self)

    keeper.Keeper.run = run_until  # type: ignore[method-assign]
    return keeper.main()


if __name__ == "__main__":
    sys.exit(main())
