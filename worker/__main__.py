"""Owns a worker's life from start to exit: backstops, handshake, engine choice, last message, exit status.

Does not own any measuring. Started as `python -P -m worker --page-fd N --control-fd N --result-fd N`; reads
one `WorkerSpec` line from the control pipe before anything heavy is imported, so that whoever started it can
bound the process first.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import traceback

from worker import backstops
from worker.failures import AttemptError, StopAsked
from worker.progress import Progress
from worker.protocol import Failure, ProtocolError, Stopped, WorkerSpec, decode_spec
from worker.results import ResultPipe
from worker.telemetry import TelemetryPage

_SPEC_LIMIT_BYTES = 16 * 1024 * 1024


def main(arguments: list[str] | None = None) -> int:
    """Runs one attempt; 0 where all was measured or a stop was asked for, 1 where it failed."""
    fds = _parse(arguments)
    for fd in (fds.page_fd, fds.control_fd, fds.result_fd):
        os.set_inheritable(fd, False)
    in_place = {"parent_death": backstops.die_with_parent()}
    backstops.set_signals()
    backstops.show_native_crashes()
    results = ResultPipe(fds.result_fd)
    try:
        spec = _read_spec(fds.control_fd)
        page = _open_page(fds.page_fd, spec.serial)
    except (ProtocolError, OSError, ValueError) as error:
        remedy = "workers are started by `wallfinder run`, from the same version"
        results.send(Failure(kind="protocol", text=str(error), remedy=remedy, phase="starting"))
        return 1
    timer = backstops.KernelTimer(spec.backstop_s)
    timer.arm()
    grace_s = backstops.lifeline_grace_s()
    backstops.hold_lifeline(fds.control_fd, page.request_stop, grace_s)
    in_place |= {
        "timer": f"ITIMER_REAL {spec.backstop_s:g} s or {backstops.PATIENCE_MARKS} slowest marks, default action",
        "lifeline": f"control pipe, grace {grace_s:g} s",
        "core_dumps": backstops.forbid_core_dumps(),
        "out_of_memory": backstops.volunteer_for_oom(),
    }
    page.open_as_worker()
    return _attempt(spec, Progress(page, timer), results, fds, in_place)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -P -m worker", description="One attempt at one cell.")
    for name, what in (
        ("page", "the telemetry page"),
        ("control", "the spec, then the lifeline"),
        ("result", "messages"),
    ):
        parser.add_argument(f"--{name}-fd", type=int, required=True, help=f"descriptor of {what}")
    return parser.parse_args(arguments)


def _read_spec(fd: int) -> WorkerSpec:
    """The first line of the control pipe. An end before it means that nobody wants this worker any more."""
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(fd, 65536)
        if not piece:
            os._exit(1)
        line += piece
        if len(line) > _SPEC_LIMIT_BYTES:
            raise ProtocolError(f"no spec within {_SPEC_LIMIT_BYTES} bytes")
    return decode_spec(line)


def _open_page(fd: int, serial: int) -> TelemetryPage:
    page = TelemetryPage(fd)
    if page.serial != serial:
        raise ProtocolError(f"the telemetry page is laid for attempt {page.serial}, the spec for {serial}")
    return page


def _attempt(
    spec: WorkerSpec,
    progress: Progress,
    results: ResultPipe,
    fds: argparse.Namespace,
    in_place: dict[str, str],
) -> int:
    """The one boundary where everything that can go wrong inside an attempt becomes its last message."""
    try:
        _run(spec, progress, results, fds, in_place)
    except StopAsked as asked:
        results.send(Stopped(phase=asked.phase, rep=asked.rep, step=asked.step))
        return 0
    except AttemptError as failure:
        sent = Failure(
            kind=failure.kind,
            text=failure.text,
            remedy=failure.remedy,
            phase=progress.phase.label,
            traceback=traceback.format_exc() if failure.__cause__ else "",
        )
    except Exception as error:  # noqa: BLE001 - whatever MLX or a model raises has to reach the record
        with contextlib.suppress(OSError):  # a log that takes nothing more must not cost the last message
            traceback.print_exc()
        sent = Failure(
            kind="error",
            text=f"{type(error).__name__}: {error}",
            remedy="see the traceback in worker.log",
            phase=progress.phase.label,
            traceback=traceback.format_exc(),
        )
    else:
        return 0
    results.send(sent)
    return 1


def _run(
    spec: WorkerSpec,
    progress: Progress,
    results: ResultPipe,
    fds: argparse.Namespace,
    in_place: dict[str, str],
) -> None:
    if spec.engine == "faulty":
        from worker.engines import faulty  # late: a real attempt has no use for it

        descriptors = faulty.Descriptors(fds.result_fd, fds.control_fd, fds.page_fd)
        faulty.play(spec, progress, results, descriptors, in_place)
        return
    if spec.fault is not None:
        raise AttemptError("bad_fault", f"engine {spec.engine!r} plays no faults", "set `engine: faulty`, or no fault")
    from worker.engines import cell  # late: this imports MLX, after the spec was read and the backstops stand

    cell.play(spec, progress, results, in_place)


if __name__ == "__main__":
    sys.exit(main())
