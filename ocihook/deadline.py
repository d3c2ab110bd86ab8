"""The hook's own deadline, below the timeout at which the runtime would kill it without a word."""

from __future__ import annotations

# The signal package costs an import of enum, as much as a third of starting Python.
import _signal  # type: ignore[import-not-found]

from ocihook.refusal import DeadlineError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType


def start(seconds: float) -> None:
    """Raise DeadlineError in the main thread when ``seconds`` have passed."""
    _signal.signal(_signal.SIGALRM, _expire)
    _signal.setitimer(_signal.ITIMER_REAL, seconds)


def stop() -> None:
    """Let the deadline pass without effect from here on."""
    _signal.setitimer(_signal.ITIMER_REAL, 0)
    _signal.signal(_signal.SIGALRM, _signal.SIG_IGN)


def _expire(_number: int, _frame: FrameType | None) -> None:
    raise DeadlineError
