"""Owns how a worker shows progress: the telemetry page, the kernel timer pushed back, the stop flag heeded.

Does not measure anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from worker.failures import StopAsked
from worker.telemetry import Phase

if TYPE_CHECKING:
    from worker.backstops import KernelTimer
    from worker.telemetry import TelemetryPage


class Progress:
    """One attempt's progress. `phase`, `rep` and `step` say where it is."""

    def __init__(self, page: TelemetryPage, timer: KernelTimer) -> None:
        self._page = page
        self._timer = timer
        self.phase = Phase.STARTING
        self.rep = 0
        self.step = 0

    def enter(self, phase: Phase, *, rep: int = 0, chunks: int = 0) -> None:
        """Begins a phase, or the next rep of one."""
        self.phase, self.rep, self.step = phase, rep, 0
        self._page.enter(phase, rep=rep, chunks=chunks)
        self._timer.push_back()

    def mark(self, chunks: int | None = None) -> None:
        """One weight or one chunk is done.

        Raises:
            StopAsked: somebody wants the worker to end.
        """
        self._page.mark(chunks)
        self._timer.push_back()
        self.heed_stop()

    def stepped(self, duration_ns: int) -> None:
        """One decode step of all rows is done."""
        self.step += 1
        self._page.step(duration_ns)
        self._timer.push_back()

    def memory(self, active: int, cache: int, peak: int) -> None:
        """MLX's own figures in bytes; shown with the next progress."""
        self._page.memory(active, cache, peak)

    def heed_stop(self) -> None:
        """Ends the attempt where the stop flag is up.

        Raises:
            StopAsked: somebody wants the worker to end.
        """
        if self._page.stop_requested:
            raise StopAsked(self.phase.label, self.rep, self.step)
