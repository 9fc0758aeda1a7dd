"""Every fault of the faulty engine, played by a real process."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from worker_driver import Driver, is_running, make_spec, wait_until

from orchestrator.failure_texts import recognise
from worker.engines.faults import ABORT_TEXTS, KINDS, Fault, parse_fault
from worker.failures import AttemptError
from worker.protocol import Done, Failure, Hello, ModelFacts, RepResult
from worker.telemetry import Phase

if TYPE_CHECKING:
    from worker_driver import Ended


def play(fault: str, folder: Path, **changes: object) -> Ended:
    with Driver(make_spec(fault=fault, **changes), folder) as driver:
        return driver.wait()


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (None, None),
        ("segfault", Fault("segfault", "decode")),
        ("slow", Fault("slow", "decode", number=50)),
        ("slow@warmup:7", Fault("slow", "warmup", number=7)),
        ("exit@load:0", Fault("exit", "load", number=0)),
        ("error:[METAL] a: b@c", Fault("error", "decode", text="[METAL] a: b@c")),
        ("abort@prefill:buffer", Fault("abort", "prefill", text="buffer")),
    ],
)
def test_fault_texts(text: str | None, fault: Fault | None) -> None:
    assert parse_fault(text) == fault


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "unknown kind ''"),
        ("melt", "known: slow, hang"),
        ("slow@lunch", "known: load, warmup, prefill, decode"),
        ("slow:fast", "whole number, not 'fast'"),
        ("abort:nonsense", "one of oom"),
        ("segfault:1", "no argument"),
    ],
)
def test_bad_fault_texts(text: str, why: str) -> None:
    with pytest.raises(AttemptError, match=why) as failure:
        parse_fault(text)
    assert failure.value.kind == "bad_fault"


def test_a_bad_fault_is_a_message(tmp_path: Path) -> None:
    ended = play("melt", tmp_path)
    assert ended.status == 1
    assert isinstance(ended.last, Failure)
    assert ended.last.kind == "bad_fault"


def test_slow_steps_inflate(tmp_path: Path) -> None:
    ended = play("slow:30", tmp_path, gen_tokens=9)
    assert ended.status == 0
    rep = ended.messages[2]
    assert isinstance(rep, RepResult)
    assert min(rep.step_s[2:]) > 5 * max(rep.step_s[:2])


@pytest.mark.parametrize("fault", ["hang", "hang_gil"])
def test_a_hang_is_deaf_or_polite(fault: str, tmp_path: Path) -> None:
    for manners, by in (("deaf", signal.SIGKILL), ("polite", signal.SIGTERM)):
        with Driver(make_spec(fault=f"{fault}:{manners}"), tmp_path) as driver:
            process = psutil.Process(driver.process.pid)
            wait_until(lambda: _step(driver) == 1, "some steps")
            wait_until(lambda p=process: p.status() == psutil.STATUS_SLEEPING and _asleep(p), "it hangs")
            driver.process.terminate()
            if manners == "deaf":
                assert is_running(driver.process.pid)
                driver.process.kill()
            assert driver.wait().status == -by


def _asleep(process: psutil.Process) -> bool:
    """No processor time between two looks."""
    before = sum(process.cpu_times()[:2])
    end = time.monotonic() + 0.1
    while time.monotonic() < end:
        if sum(process.cpu_times()[:2]) != before:
            return False
    return True


def _step(driver: Driver) -> int:
    seen = driver.page.read()
    return seen.step if seen is not None and seen.phase is Phase.DECODE else -1


def test_a_leak_takes_memory(tmp_path: Path) -> None:
    with Driver(make_spec(fault="leak:4", gen_tokens=100_000, warmup=0), tmp_path) as driver:
        process = psutil.Process(driver.process.pid)
        wait_until(lambda: _step(driver) > 1, "decode begins")
        wait_until(lambda: process.memory_info().rss > 100_000_000, "100 MB are taken and touched")
        seen = driver.page.read()
        assert seen is not None
        assert seen.active_bytes > 50_000_000


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        ("segfault", -signal.SIGSEGV),
        ("sigkill", -signal.SIGKILL),
        ("exit", 3),
        ("exit:0", 0),
        ("exit@prefill:7", 7),
    ],
)
def test_ends_without_a_last_message(fault: str, status: int, tmp_path: Path) -> None:
    ended = play(fault, tmp_path)
    assert ended.status == status
    assert isinstance(ended.last, ModelFacts)
    assert ended.torn == b""


@pytest.mark.parametrize("phase", ["load", "prefill", "decode"])
def test_a_segfault_leaves_its_stack_and_no_text_that_means_something_else(phase: str, tmp_path: Path) -> None:
    output = play(f"segfault@{phase}", tmp_path).output.decode()
    assert output.startswith("Fatal Python error: Segmentation fault")
    assert " in _segfault\n" in output
    assert recognise(output) is None


@pytest.mark.parametrize("name", ABORT_TEXTS)
def test_aborts_say_why_on_stderr(name: str, tmp_path: Path) -> None:
    ended = play(f"abort:{name}", tmp_path)
    assert ended.status == -signal.SIGABRT
    assert ended.output.startswith(b"libc++abi: terminating due to uncaught exception of type std::runtime_error: [")
    assert ended.output.rstrip().endswith(ABORT_TEXTS[name].encode())


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("error", "kIOGPUCommandBufferCallbackErrorOutOfMemory"),
        ("error:odd", "odd"),
        ("memory_error", "MemoryError"),
    ],
)
def test_errors_are_messages(fault: str, text: str, tmp_path: Path) -> None:
    ended = play(fault, tmp_path)
    assert ended.status == 1
    assert isinstance(ended.last, Failure)
    assert (ended.last.kind, ended.last.phase) == ("error", "decode")
    assert text in ended.last.text
    assert "Traceback" in ended.last.traceback


def test_a_flood_harms_nobody(tmp_path: Path) -> None:
    ended = play("flood:3", tmp_path)
    assert ended.last == Done(reps=2)
    assert ended.output == b"x" * 3_000_000


def test_garbage_stays_out_of_the_results(tmp_path: Path) -> None:
    ended = play("garbage", tmp_path)
    assert ended.last == Done(reps=2)
    with pytest.raises(UnicodeDecodeError):
        ended.output.decode()


def test_a_torn_line_stays_torn(tmp_path: Path) -> None:
    ended = play("torn:4", tmp_path)
    assert ended.status == 4
    assert ended.torn.startswith(b'{"type":"rep"')


def test_an_early_death_says_nothing(tmp_path: Path) -> None:
    ended = play("early_death:9", tmp_path)
    assert (ended.status, ended.messages) == (9, [])


@pytest.mark.parametrize("fault", ["grandchild", "grandchild_session"])
def test_a_grandchild_outlives_the_worker(fault: str, tmp_path: Path) -> None:
    with Driver(make_spec(fault=fault), tmp_path) as driver:
        ended = driver.wait()
        pid = int(ended.output.split()[1])
        try:
            assert ended.last == Done(reps=2)
            assert is_running(pid)
            same_group = os.getpgid(pid) == driver.process.pid
            assert same_group == (fault == "grandchild")
            # It holds the result pipe, so the pipe does not end with the worker.
            os.set_blocking(driver.result, False)
            with pytest.raises(BlockingIOError):
                os.read(driver.result, 1)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not is_running(pid), "the grandchild is gone")


def test_an_exit_may_hang(tmp_path: Path) -> None:
    with Driver(make_spec(fault="exit_hang", backstop_s=1.0), tmp_path) as driver:
        ended = driver.wait()
    assert ended.last == Done(reps=2)
    assert ended.status == -signal.SIGALRM


def test_stderr_after_done(tmp_path: Path) -> None:
    ended = play("stderr_after_done", tmp_path)
    assert ended.status == 0
    assert ended.last == Done(reps=2)
    assert b"leaked semaphore" in ended.output


@pytest.mark.parametrize(
    ("phase", "messages"),
    [("load", [Hello]), ("warmup", [Hello, ModelFacts]), ("prefill", [Hello, ModelFacts])],
)
def test_faults_strike_in_their_phase(phase: str, messages: list[type], tmp_path: Path) -> None:
    with Driver(make_spec(fault=f"exit@{phase}"), tmp_path) as driver:
        ended = driver.wait()
        seen = driver.page.read()
    assert [type(message) for message in ended.messages] == messages
    assert seen is not None
    assert seen.phase.label == phase


def test_every_kind_is_played_here() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    beside = {"spin"}  # in test_worker_process.py, ended by the kernel timer
    assert [kind for kind in KINDS if f'"{kind}' not in text and kind not in beside] == []
