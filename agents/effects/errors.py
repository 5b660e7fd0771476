"""The errors about effects, and the error that a write tool raises.

RefoldError
+-- EffectUnknown      it was sent, and it is unknown whether it was carried out: not sent again before it is settled
+-- EffectFailed       it was not carried out, and may not be tried again; carries the last attempt's failure
+-- ResultNotKept      it was carried out, but the tool's result could not be recorded
+-- NotDone            raised by a tool or a probe: nothing happened outside
"""

from __future__ import annotations

from refold.avro.errors import RefoldError


class NotDone(RefoldError):
    """Raise it in a write tool when it is certain that nothing happened outside: the effect counts as failed.

    In a probe it means that the effect was not and will not be carried out.

    Attributes:
        retryable: Whether another attempt may help.
    """

    def __init__(self, message: str = "", *, retryable: bool = True) -> None:
        super().__init__(message)
        self.retryable = retryable


class EffectUnknown(RefoldError):
    """An effect was sent, and it is not known whether it was carried out. `key` names it; the message says how to
    settle it."""

    def __init__(self, key: str, why: str) -> None:
        super().__init__(
            f"effect {key}: {why}, so it may have taken place or not, and is not sent again. Look at the other side, "
            f"then say `refold effects settle '{key}' --done RESULT` or `--not-done`, or give the tool a probe that "
            "can look by itself"
        )
        self.key = key


class EffectFailed(RefoldError):
    """An effect did not take place and its attempts are used up.

    Attributes:
        exception, message: The class and the message of the last attempt's exception.
    """

    def __init__(self, key: str, attempts: int, exception: str, message: str) -> None:
        super().__init__(
            f"effect {key}: it did not take place; attempt {attempts}, the last allowed, failed with {exception}: "
            f"{message}. To have it tried again, allow more attempts, or say `refold effects settle '{key}' --not-done`"
        )
        self.key = key
        self.attempts = attempts
        self.exception = exception
        self.message = message


class ResultNotKept(RefoldError):
    """An effect took place, but its result is not in the log; `key` names it."""

    def __init__(self, key: str, why: str) -> None:
        super().__init__(
            f"effect {key}: it took place, and is not sent again, but its result is not in the log ({why}). Say what "
            f"it was with `refold effects settle '{key}' --done RESULT`"
        )
        self.key = key
