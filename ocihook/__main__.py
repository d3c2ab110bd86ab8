"""The command ``amd-oci-hook``: one decision, one line, and 0 only if the container may start."""

from __future__ import annotations

import sys

from ocihook import arguments, deadline, decision, log, state
from ocihook.files import read_descriptor
from ocihook.refusal import DeadlineError, Refusal

REFUSED = 1


def main(argv: list[str] | None = None) -> int:
    """Return 0 if the container may start, REFUSED otherwise."""
    words = sys.argv[1:] if argv is None else argv
    run = Run(_value(words, "--sysroot"))
    told = ""
    try:
        held = run.judge(words)
    except Refusal as refusal:
        reason, told = str(refusal), refusal.for_pod()
    except DeadlineError:
        hint = "the machine may be overloaded: start the container again"
        reason = f"expected the checks to end in time, found them unfinished; {hint}"
    except BaseException as error:  # noqa: BLE001 - whatever happens, the container must not start
        found = f"{type(error).__name__}: {error} {_place(error)}"
        reason = f"expected the checks to end, found {found}; report it"
    else:
        if held:
            log.record(log.line(run.container, held), run.container, log.INFO, run.sysroot)
        return 0
    name = _value(words, "--share")
    refused = f"{name and f'share {name}: '}refused: "
    # What is said on standard error of a pod's container stands in the pod's events.
    shown = told if told and name.startswith("pod-") else reason
    log.tell(log.line(run.container, refused + shown))
    log.record(log.line(run.container, refused + reason), run.container, log.ERROR, run.sysroot)
    return REFUSED


class Run:
    """What is known of a run as it goes on, for the line at its end."""

    __slots__ = ("container", "sysroot")

    def __init__(self, sysroot: str) -> None:
        self.container = "unknown"
        """Id of the container."""
        self.sysroot = sysroot

    def judge(self, words: list[str]) -> str:
        """Return what holds the container to its share, empty for one without a share.

        Raises Refusal, or DeadlineError when the time is up.
        """
        options = arguments.parse(words)
        deadline.start(options.deadline)
        try:
            found = state.parse(read_descriptor(0, state.LIMIT, "the OCI state"))
            self.container = found.id
            return decision.decide(options, found)
        finally:
            deadline.stop()


def _value(words: list[str], option: str) -> str:
    """Return an option's value also where the arguments as a whole are not readable."""
    return words[words.index(option) + 1] if option in words[:-1] else ""


def _place(error: BaseException) -> str:
    """Return file and line where an unforeseen error came from."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return ""
    return f"({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})"


if __name__ == "__main__":
    sys.exit(main())
