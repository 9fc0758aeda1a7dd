"""Owns how a person or the system asks the sweep to stop: SIGINT, SIGTERM, SIGHUP, counted.

Does not stop anything itself. The first signal asks for an orderly stop, the second for one at once.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import FrameType, TracebackType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Catches the stop signals while entered. `fd` turns readable at each, so that a selector wakes."""

    def __init__(self) -> None:
        self.count = 0
        self.signum: int | None = None
        self.fd = -1
        self._write_fd = -1
        self._previous: dict[int, object] = {}

    @property
    def wanted(self) -> bool:
        """Whether the sweep is to stop."""
        return self.count > 0

    @property
    def hurry(self) -> bool:
        """Whether it is to stop at once."""
        return self.count > 1

    def __enter__(self) -> Self:
        self.fd, self._write_fd = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._write_fd, False)
        self._previous = {signum: signal.signal(signum, self._caught) for signum in _SIGNALS}
        signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.set_wakeup_fd(-1)
        for signum, handler in self._previous.items():
            # Who was stopped is on the way out: one more Ctrl-C must not spoil the last words and the exit code.
            signal.signal(signum, signal.SIG_IGN if self.wanted else handler)  # type: ignore[arg-type]  # what signal.signal returned
        os.close(self.fd)
        os.close(self._write_fd)

    def drain(self) -> None:
        """Empties `fd` after a selector woke for it."""
        try:
            while os.read(self.fd, 64):
                pass
        except BlockingIOError:
            pass

    def _caught(self, signum: int, _frame: FrameType | None) -> None:
        self.count += 1
        self.signum = self.signum or signum
