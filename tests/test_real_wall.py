"""A real wall, made of a swap file and a control group: found, ended, recorded, and the sweep goes on."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from sweeps import desk, wait_until

from bench.real_wall import NoWallError, swap_file
from orchestrator.errors import WallfinderError
from orchestrator.recordings import recorded_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

CONFIG = Path(__file__).parent.parent / "configs" / "wall-linux.yaml"
SWAP_BYTES = 2_000_000_000

pytestmark = [pytest.mark.slow, pytest.mark.wall, pytest.mark.timeout(900)]


@contextlib.contextmanager
def swap() -> Iterator[None]:
    try:
        with swap_file(SWAP_BYTES):
            yield
    except NoWallError as reason:
        pytest.skip(str(reason))


def lived_after_the_first_inflated_step_s(attempt: Path) -> float | None:
    """From the moment a decode step took 2.5 times the expected time, finished or not, to the worker's death.

    None: no step of this attempt did.
    """
    expected_s = json.loads((attempt / "result.json").read_bytes())["limits"]["expected_step_s"]
    samples = [line for line in recorded_lines(attempt / "samples.jsonl") if "event" not in line]
    inflated = [
        sample["monotonic_s"]
        for sample in samples
        if (progress := sample.get("progress"))
        and progress["total_steps"] > 0
        and max(progress["progress_age_s"], *progress.get("new_step_s", [0.0])) > 2.5 * expected_s
    ]
    return samples[-1]["monotonic_s"] - inflated[0] if inflated else None


def lived_after_the_first_swap_s(attempt: Path) -> float:
    """From the first sample in which the worker had swapped out 1 % of its bound to its death."""
    samples = [line for line in recorded_lines(attempt / "samples.jsonl") if "event" not in line]
    swapped = [s["monotonic_s"] for s in samples if s.get("worker", {}).get("cgroup_swapped_bytes", 0) > 4_000_000]
    return float(samples[-1]["monotonic_s"] - min(swapped, default=samples[-1]["monotonic_s"]))


def test_batch_16_hits_the_wall_and_the_sweep_goes_on(tmp_path: Path) -> None:
    """The plan as it is shipped: the wall is met while the context is filled, before any step."""
    with swap(), desk(tmp_path) as at:
        done = at.run(CONFIG)
        assert done.returncode == 0, done.stderr
        cells = {cell["batch"]: cell for cell in at.status("wall-linux")["cells"]}
        print(json.dumps(cells[16], indent=1))
        assert [cells[batch]["verdict"] for batch in (1, 4, 16)] == ["completed", "completed", "hit_the_wall"]
        evidence = cells[16]["evidence"]
        if cells[16]["cause"] == "kernel_oom":
            # The kernel was faster than the watchdog: pages could not leave as fast as they were needed.
            assert evidence["oom_kills"] >= 1
        else:
            assert cells[16]["cause"] in ("swap_growth", "footprint", "memory_pressure")
            assert evidence["swap_growth_peak_bytes"] > 4_000_000
            assert cells[16]["peak_footprint_bytes"] > 380_000_000
        attempt = at.runs / "wall-linux" / "cells" / "c04096-b016" / "attempt-1"
        assert lived_after_the_first_inflated_step_s(attempt) is None, "it was ended before it decoded at all"
        print(f"dead {lived_after_the_first_swap_s(attempt)} s after it began to swap")


def test_a_wall_that_comes_while_decoding_is_ended_within_10_s_of_the_first_slow_step(tmp_path: Path) -> None:
    """Memory is taken away in the middle of healthy decoding, as a neighbour would."""
    body = yaml.safe_load(CONFIG.read_text())
    body |= {"worker_memory": "1GB", "gen_tokens": 250, "reps": 1, "warmup": 0}
    plan = tmp_path / "deep.yaml"
    plan.write_text(yaml.safe_dump(body))
    attempt = tmp_path / "runs" / "deep" / "cells" / "c04096-b016" / "attempt-1"
    with swap(), desk(tmp_path) as at:
        process = at.start("run", plan, "-o", at.runs)
        wait_until(lambda: process.poll() is not None or is_decoding(attempt), limit_s=300)
        take_memory_away(400_000_000)
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        cells = {cell["batch"]: cell for cell in at.status("deep")["cells"]}
        print(json.dumps(cells[16], indent=1))
        assert [cells[batch]["verdict"] for batch in (1, 4, 16)] == ["completed", "completed", "hit_the_wall"]
        assert cells[16]["phase"] == "decode"
        assert cells[16]["cause"] in ("swap_growth", "step_inflation", "memory_pressure")
        lived_s = lived_after_the_first_inflated_step_s(attempt)
        print(f"dead {lived_s} s after its first inflated step")
        assert lived_s is not None
        assert lived_s <= 10.0


def is_decoding(attempt: Path) -> bool:
    with contextlib.suppress(OSError, WallfinderError, KeyError, IndexError):
        last = [line for line in recorded_lines(attempt / "samples.jsonl") if "event" not in line][-1]
        return bool(last["progress"]["phase"] == "decode" and last["progress"]["step"] >= 10)
    return False


def take_memory_away(limit_bytes: int, limit_s: float = 60.0) -> None:
    """Lowers the bound of the worker that runs now. The kernel refuses while it cannot push pages out as fast."""
    deadline = time.monotonic() + limit_s
    for folder in Path("/sys/fs/cgroup").rglob("wallfinder-*"):
        for file in (folder / "memory.limit_in_bytes", folder / "memory.max"):
            while file.exists() and int(file.read_text()) > limit_bytes + 4096:
                assert time.monotonic() < deadline, f"{file} cannot be lowered"
                with contextlib.suppress(OSError):
                    file.write_text(str(limit_bytes))
