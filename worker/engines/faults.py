"""Owns the faults that the faulty engine plays: names, text form, and what each does to the process.

Does not own when a phase is reached (faulty.py). Everything here is meant to go wrong; never imported by a
real engine.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

from worker.failures import AttemptError

PHASES = ("load", "warmup", "prefill", "decode")
_FOREVER_S = 3600

_METAL = "[METAL] Command buffer execution failed: "
ABORT_TEXTS = {
    "oom": f"{_METAL}Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
    "timeout": f"{_METAL}Caused GPU Timeout Error (00000002:kIOGPUCommandBufferCallbackErrorTimeout)",
    "hang": f"{_METAL}Caused GPU Hang Error (00000003:kIOGPUCommandBufferCallbackErrorHang)",
    "page_fault": f"{_METAL}Caused GPU Address Fault Error (0000000b:kIOGPUCommandBufferCallbackErrorPageFault)",
    "interactivity": (
        f"{_METAL}Impacting Interactivity (0000000e:kIOGPUCommandBufferCallbackErrorImpactingInteractivity)"
    ),
    "victim": (
        f"{_METAL}Discarded (victim of GPU error/recovery) (00000005:kIOGPUCommandBufferCallbackErrorInnocentVictim)"
    ),
    "buffer": (
        "[metal::malloc] Attempting to allocate 48736917632 bytes which is greater than the maximum allowed "
        "buffer size of 30150672384 bytes."
    ),
    "malloc": "[malloc] Unable to allocate 9663676416 bytes.",
    "resource": "[metal::malloc] Resource limit (499000) exceeded.",
}

# name -> the argument's default; None where the fault takes none. A default's type is the argument's type.
KINDS: dict[str, int | str | None] = {
    "slow": 50,
    "hang": "deaf",
    "hang_gil": "deaf",
    "spin": None,
    "leak": 8,
    "segfault": None,
    "abort": "oom",
    "exit": 3,
    "error": ABORT_TEXTS["oom"],
    "flood": 8,
    "garbage": None,
    "torn": 0,
    "early_death": 1,
    "grandchild": 0,
    "grandchild_session": None,
    "sigkill": None,
    "exit_hang": None,
    "stderr_after_done": None,
    "memory_error": None,
}


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong, in which phase, with which argument (`number` or `text`, by the kind)."""

    kind: str
    phase: str
    number: int = 0
    text: str = ""


def parse_fault(text: str | None) -> Fault | None:
    """The fault of `KIND[@PHASE][:ARG]`; None for no fault. The phase is decode where none is named.

    Raises:
        AttemptError: unknown kind or phase, or an argument of the wrong type.
    """
    if text is None:
        return None
    head, colon, argument = text.partition(":")
    kind, at, phase = head.partition("@")
    if kind not in KINDS:
        raise _bad(text, f"unknown kind {kind!r}; known: {', '.join(KINDS)}")
    if not at:
        phase = "decode"
    if phase not in PHASES:
        raise _bad(text, f"unknown phase {phase!r}; known: {', '.join(PHASES)}")
    default = KINDS[kind]
    if default is None:
        if colon:
            raise _bad(text, f"{kind} takes no argument")
        return Fault(kind, phase)
    if isinstance(default, str):
        return Fault(kind, phase, text=_checked_text(text, kind, argument if colon else default))
    try:
        return Fault(kind, phase, number=int(argument) if colon else default)
    except ValueError:
        raise _bad(text, f"{kind} takes a whole number, not {argument!r}") from None


def _checked_text(text: str, kind: str, argument: str) -> str:
    choices = {"abort": tuple(ABORT_TEXTS), "hang": ("deaf", "polite"), "hang_gil": ("deaf", "polite")}.get(kind)
    if choices and argument not in choices:
        raise _bad(text, f"{kind} takes one of {', '.join(choices)}, not {argument!r}")
    return argument


def _bad(text: str, why: str) -> AttemptError:
    return AttemptError("bad_fault", f"fault {text!r}: {why}", "write the fault as KIND[@PHASE][:ARG]")


class Leak:
    """Memory that is taken and touched and never given back."""

    def __init__(self, step_bytes: int) -> None:
        self._step_bytes = step_bytes
        self._held: list[bytearray] = []

    @property
    def held_bytes(self) -> int:
        """All that was taken."""
        return len(self._held) * self._step_bytes

    def grow(self) -> None:
        """Takes and touches one more piece, with bytes that no system can compress away."""
        piece = bytearray(self._step_bytes)
        for at in range(0, self._step_bytes, 4096):
            piece[at : at + 16] = os.urandom(16)
        self._held.append(piece)


def strike(fault: Fault, result_fd: int, held_fds: tuple[int, ...]) -> None:
    """Does what the fault says, once. Returns only for faults after which the work goes on."""
    act = _ACTS.get(fault.kind)
    if act is not None:
        act(fault, result_fd, held_fds)


def strike_after_done(fault: Fault) -> None:
    """Faults of the time after the last message."""
    if fault.kind == "stderr_after_done":
        _write_all(2, b"resource_tracker: There appear to be 1 leaked semaphore objects to clean up at shutdown\n")
    if fault.kind == "exit_hang":
        # The interpreter joins such a thread at its end, and this one has none.
        threading.Thread(target=time.sleep, args=(_FOREVER_S,), name="exit_hang", daemon=False).start()


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _hang(fault: Fault, _result_fd: int, _held: tuple[int, ...]) -> None:
    if fault.text == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(_FOREVER_S)


def _hang_gil(fault: Fault, _result_fd: int, _held: tuple[int, ...]) -> None:
    if fault.text == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # PyDLL keeps the interpreter's lock during the call: no other thread of this process runs any more.
    libc = ctypes.PyDLL(None)
    while True:
        libc.sleep(_FOREVER_S)


def _spin(_fault: Fault, _result_fd: int, _held: tuple[int, ...]) -> None:
    while True:
        pass


def _segfault(_fault: Fault, _result_fd: int, _held: tuple[int, ...]) -> None:
    ctypes.string_at(0)


def _abort(fault: Fault, _result_fd: int, _held: tuple[int, ...]) -> None:
    text = ABORT_TEXTS[fault.text]
    line = f"libc++abi: terminating due to uncaught exception of type std::runtime_error: {text}\n"
    _write_all(2, line.encode())
    os.abort()


def _exit(fault: Fault, _result_fd: int, _held: tuple[int, ...]) -> None:
    os._exit(fault.number)


def _error(fault: Fault, _result_fd: int, _held: tuple[int, ...]) -> None:
    raise RuntimeError(fault.text)


def _memory_error(_fault: Fault, _result_fd: int, _held: tuple[int, ...]) -> None:
    raise MemoryError("std::bad_alloc")


def _flood(fault: Fault, _result_fd: int, _held: tuple[int, ...]) -> None:
    for _ in range(fault.number):
        _write_all(2, b"x" * 1_000_000)


def _garbage(_fault: Fault, _result_fd: int, _held: tuple[int, ...]) -> None:
    _write_all(1, b'\xff\xfe{"type":"done","reps":99}\n\x00\xc3\x28\x1b[2J' * 50)
    _write_all(2, bytes(range(256)) * 50)


def _torn(fault: Fault, result_fd: int, _held: tuple[int, ...]) -> None:
    _write_all(result_fd, b'{"type":"rep","rep":0,"prefill_s":0.0')
    os._exit(fault.number)


def _sigkill(_fault: Fault, _result_fd: int, _held: tuple[int, ...]) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _grandchild(fault: Fault, _result_fd: int, held: tuple[int, ...]) -> None:
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", f"import time; time.sleep({_FOREVER_S})"],
        pass_fds=held,
        start_new_session=fault.kind == "grandchild_session",
    )
    _write_all(2, f"grandchild {child.pid}\n".encode())
    time.sleep(fault.number)


_ACTS = {
    "hang": _hang,
    "hang_gil": _hang_gil,
    "spin": _spin,
    "segfault": _segfault,
    "abort": _abort,
    "exit": _exit,
    "error": _error,
    "memory_error": _memory_error,
    "flood": _flood,
    "garbage": _garbage,
    "torn": _torn,
    "sigkill": _sigkill,
    "grandchild": _grandchild,
    "grandchild_session": _grandchild,
}
