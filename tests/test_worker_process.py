"""Real worker processes over real pipes: the happy path, the stop flag, and every way of being left alone."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import tiny_models as tiny
from worker_driver import ROOT, Driver, is_running, make_spec, wait_until

from worker.protocol import Done, Failure, Hello, ModelFacts, RepResult, Stopped, encode_spec
from worker.telemetry import Phase

LINUX_ONLY = pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG and oom_score_adj are Linux's")


def _phase(driver: Driver) -> Phase:
    seen = driver.page.read()
    assert seen is not None
    return seen.phase


@pytest.mark.parametrize("engine", ["batched", "lockstep", "faulty"])
def test_a_cell_from_start_to_end(engine: str, tmp_path: Path) -> None:
    spec = make_spec(engine=engine, model=tiny.source(tiny.LLAMA), reps=3, warmup=1, batch=4, context=10)
    with Driver(spec, tmp_path) as driver:
        ended = driver.wait()
        seen = driver.page.read()
    assert ended.status == 0, ended.output
    assert ended.torn == b""
    hello, facts, *reps, done = ended.messages
    assert isinstance(hello, Hello)
    assert hello.pid == driver.process.pid
    assert {"parent_death", "timer", "lifeline", "core_dumps", "out_of_memory"} <= hello.backstops.keys()
    assert isinstance(facts, ModelFacts)
    assert facts.cache_bytes_per_token
    assert done == Done(reps=3)
    assert [rep.rep for rep in reps if isinstance(rep, RepResult)] == [0, 1, 2]
    for rep in reps:
        assert isinstance(rep, RepResult)
        assert rep.rows_per_step == [4] * 5
        assert rep.prompt_tokens == 40
        assert rep.generated_tokens == 24
    assert seen is not None
    assert (seen.phase, seen.pid, seen.total_steps) == (Phase.DONE, driver.process.pid, 4 * 5)


def test_stray_prints_cannot_reach_the_results(tmp_path: Path) -> None:
    """A key that no ModelArgs reads is reported on stderr; the pipe holds messages alone."""
    spec = make_spec(engine="lockstep", model=tiny.source({**tiny.LLAMA, "strange": 1}))
    with Driver(spec, tmp_path) as driver:
        ended = driver.wait()
    assert ended.status == 0
    assert b"strange" in ended.output
    assert len(ended.messages) == 5


def test_a_refusal_is_a_message_and_status_1(tmp_path: Path) -> None:
    spec = make_spec(engine="batched", model=tiny.source(tiny.LLAMA4))
    with Driver(spec, tmp_path) as driver:
        ended = driver.wait()
    assert ended.status == 1
    assert isinstance(ended.last, Failure)
    assert ended.last.kind == "not_batchable"
    assert ended.last.phase == "calibrate"


def test_an_mlx_exception_is_an_error_with_its_traceback(tmp_path: Path) -> None:
    """Four query heads cannot share three heads of keys; only the attention itself finds out."""
    spec = make_spec(engine="batched", model=tiny.source({**tiny.LLAMA, "num_key_value_heads": 3}))
    with Driver(spec, tmp_path) as driver:
        ended = driver.wait()
    assert ended.status == 1
    assert isinstance(ended.last, Failure)
    assert (ended.last.kind, ended.last.phase) == ("error", "calibrate")
    assert "[scaled_dot_product_attention]" in ended.last.text
    assert "Traceback" in ended.last.traceback
    assert b"Traceback" in ended.output


def test_a_real_engine_plays_no_faults(tmp_path: Path) -> None:
    with Driver(make_spec(engine="batched", fault="hang"), tmp_path) as driver:
        ended = driver.wait()
    assert isinstance(ended.last, Failure)
    assert ended.last.kind == "bad_fault"


def test_an_unknown_engine_is_refused(tmp_path: Path) -> None:
    with Driver(make_spec(engine="warp"), tmp_path) as driver:
        ended = driver.wait()
    assert isinstance(ended.last, Failure)
    assert "'warp'" in ended.last.text


@pytest.mark.parametrize("engine", ["batched", "lockstep", "faulty"])
def test_the_stop_flag_ends_a_decode(engine: str, tmp_path: Path) -> None:
    spec = make_spec(engine=engine, model=tiny.source(tiny.LLAMA), gen_tokens=200_000, warmup=0)
    with Driver(spec, tmp_path) as driver:
        wait_until(lambda: _phase(driver) is Phase.DECODE, "decode begins")
        driver.page.request_stop()
        ended = driver.wait()
    assert ended.status == 0, ended.output
    assert isinstance(ended.last, Stopped)
    assert (ended.last.phase, ended.last.rep) == ("decode", 0)


def test_warm_up_shows_as_such(tmp_path: Path) -> None:
    spec = make_spec(warmup=2, gen_tokens=200_000)
    with Driver(spec, tmp_path) as driver:
        wait_until(lambda: _phase(driver) is Phase.WARMUP, "warm-up begins")
        driver.page.request_stop()
        ended = driver.wait()
    assert isinstance(ended.last, Stopped)
    assert (ended.last.phase, ended.last.rep) == ("warmup", 0)


@pytest.mark.parametrize("engine", ["batched", "faulty"])
def test_the_lifelines_end_ends_the_worker(engine: str, tmp_path: Path) -> None:
    spec = make_spec(engine=engine, model=tiny.source(tiny.LLAMA), gen_tokens=1_000_000, warmup=0)
    with Driver(spec, tmp_path) as driver:
        wait_until(lambda: _phase(driver) is Phase.DECODE, "decode begins")
        driver.cut_lifeline()
        ended = driver.wait()
    assert ended.status == -signal.SIGKILL


def test_nobody_there_before_the_spec(tmp_path: Path) -> None:
    with Driver(make_spec(), tmp_path, send_spec=False) as driver:
        driver.cut_lifeline()
        ended = driver.wait()
    assert ended.status == 1
    assert ended.messages == []


@LINUX_ONLY
def test_mlx_waits_for_the_spec(tmp_path: Path) -> None:
    """Whoever starts a worker can bound it before it grows."""
    spec = make_spec(engine="lockstep", model=tiny.source(tiny.LLAMA))
    with Driver(spec, tmp_path, send_spec=False) as driver:
        process = psutil.Process(driver.process.pid)
        wait_until(lambda: process.status() == psutil.STATUS_SLEEPING, "the worker waits")
        assert not any("mlx" in item.path for item in process.memory_maps())
        os.write(driver.control, encode_spec(spec))
        assert driver.wait().status == 0


@pytest.mark.parametrize("line", [b"{}\n", b"\xff\n", b'{"protocol": 99}\n'])
def test_a_spec_of_another_version(line: bytes, tmp_path: Path) -> None:
    with Driver(make_spec(), tmp_path, send_spec=False) as driver:
        os.write(driver.control, line)
        ended = driver.wait()
    assert ended.status == 1
    assert isinstance(ended.last, Failure)
    assert ended.last.kind == "protocol"


def test_a_page_of_another_attempt(tmp_path: Path) -> None:
    with Driver(make_spec(), tmp_path, send_spec=False) as driver:
        driver.page.lay(6)
        os.write(driver.control, encode_spec(driver.spec))
        ended = driver.wait()
    assert isinstance(ended.last, Failure)
    assert "attempt 6" in ended.last.text


@LINUX_ONLY
def test_the_parents_death_ends_the_worker(tmp_path: Path) -> None:
    """A middle process starts a worker that hangs, and is killed: nothing of it is left to clean up."""
    code = f"""
import sys, time
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "tests")!r}]
from pathlib import Path
from worker_driver import Driver, make_spec
with Driver(make_spec(fault="hang@load", backstop_s=500), Path({str(tmp_path)!r})) as driver:
    print(driver.process.pid, flush=True)
    time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as middle:
        assert middle.stdout is not None
        pid = int(middle.stdout.readline())
        try:
            assert is_running(pid)
            middle.send_signal(signal.SIGKILL)
            middle.wait()
            wait_until(lambda: not is_running(pid), "the worker is gone", 10)
        finally:
            middle.kill()
            if is_running(pid):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("fault", ["hang", "hang_gil", "spin"])
def test_the_kernel_timer_ends_what_nobody_watches(fault: str, tmp_path: Path) -> None:
    with Driver(make_spec(fault=fault, backstop_s=0.7), tmp_path) as driver:
        ended = driver.wait()
    assert ended.status == -signal.SIGALRM


def test_progress_pushes_the_kernel_timer_back(tmp_path: Path) -> None:
    """Four seconds of millisecond steps under a timer of two."""
    spec = make_spec(warmup=0, reps=1, gen_tokens=3500, backstop_s=2.0)
    began = time.monotonic()
    with Driver(spec, tmp_path) as driver:
        ended = driver.wait()
    assert time.monotonic() - began > 2.5
    assert ended.status == 0


def test_interrupts_are_the_orchestrators_business(tmp_path: Path) -> None:
    spec = make_spec(gen_tokens=200_000, warmup=0)
    with Driver(spec, tmp_path) as driver:
        wait_until(lambda: _phase(driver) is Phase.DECODE, "decode begins")
        driver.process.send_signal(signal.SIGINT)
        seen = driver.page.read()
        assert seen is not None
        wait_until(lambda: (now := driver.page.read()) is not None and now.step > seen.step + 20, "it goes on")
        driver.process.send_signal(signal.SIGTERM)
        assert driver.wait().status == -signal.SIGTERM


@LINUX_ONLY
def test_limits_are_in_place(tmp_path: Path) -> None:
    with Driver(make_spec(fault="hang"), tmp_path) as driver:
        wait_until(lambda: _phase(driver) is Phase.DECODE, "decode begins")
        pid = driver.process.pid
        assert Path(f"/proc/{pid}/oom_score_adj").read_text() == "1000\n"
        core = psutil.Process(pid).rlimit(resource.RLIMIT_CORE)
        assert core == (0, 0)


def test_the_faulty_engine_starts_at_once(tmp_path: Path) -> None:
    """No MLX, nothing heavy: what is imported is counted in place of milliseconds."""
    code = "import sys, worker.__main__, worker.engines.faulty; print(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    heavy = {"mlx", "mlx_lm", "numpy", "transformers", "asyncio", "pydantic", "tempfile", "logging"}
    assert heavy.isdisjoint(done.stdout.split())


def test_descriptors_are_private(tmp_path: Path) -> None:
    """A child that the worker starts without naming them holds none of its descriptors."""
    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc")
    with Driver(make_spec(fault="hang"), tmp_path) as driver:
        wait_until(lambda: _phase(driver) is Phase.DECODE, "decode begins")
        folder = Path(f"/proc/{driver.process.pid}/fdinfo")
        for name in sorted(folder.iterdir(), key=lambda path: int(path.name)):
            if int(name.name) > 2:
                flags = int(name.read_text().splitlines()[1].split()[1], 8)
                assert flags & os.O_CLOEXEC, name
