"""Tests of what a long recording keeps."""

from __future__ import annotations

from typing import Any

from simulated_cell import HOST, Cell

from orchestrator.thinning import AROUND_LINES, WHOLE_LINES, thin
from orchestrator.watchdog.recording import SampleReader, encode_sample


def recording(cell: Cell) -> list[dict[str, Any]]:
    lines, before = [], 0
    for sample, _ in cell.played:
        lines.append(encode_sample(sample, before))
        before = sample.progress.total_steps if sample.progress else before
    return lines


def ticks(lines: list[dict[str, Any]]) -> int:
    return sum(line.get("every", 1) for line in lines if "event" not in line)


def test_old_samples_are_halved_and_new_ones_kept() -> None:
    lines = recording(Cell(HOST).run(200.0))
    thinned = thin(lines)

    assert thinned[-WHOLE_LINES:] == lines[-WHOLE_LINES:]
    assert len(thinned) == WHOLE_LINES + (len(lines) - WHOLE_LINES + 1) // 2
    assert ticks(thinned) == len(lines)


def test_thinning_again_thins_what_is_old_and_never_loses_a_tick() -> None:
    lines = recording(Cell(HOST).run(200.0))
    many = thin(thin(thin(thin(thin(lines)))))

    assert len(many) < WHOLE_LINES + 50
    assert ticks(many) == len(lines)
    assert max(line.get("every", 1) for line in many) == 32


def test_no_decode_step_is_lost_while_a_ring_holds_them() -> None:
    lines = recording(Cell(HOST).run(120.0, step_s=0.03))
    reader = SampleReader()
    whole, thinned = [reader.decode(line) for line in lines], []
    reader = SampleReader()
    thinned = [reader.decode(line) for line in thin(thin(lines))]
    by_time = {sample.monotonic_s: sample for sample in whole}

    assert len(thinned) < len(whole)
    assert all(sample == by_time[sample.monotonic_s] for sample in thinned)


def test_the_stretch_around_an_action_is_kept_whole() -> None:
    lines = recording(Cell(HOST).run(400.0))
    action = {"event": "would_act", "at_s": lines[1500]["monotonic_s"], "cause": "swap_growth", "evidence": {}}
    lines.insert(1500, action)
    for _ in range(4):
        thinned = thin(lines)
        at = thinned.index(action)
        assert (
            thinned[at - AROUND_LINES : at + AROUND_LINES + 1]
            == lines[lines.index(action) - AROUND_LINES :][: 2 * AROUND_LINES + 1]
        )
        lines = thinned
    assert len(lines) < WHOLE_LINES + 2 * AROUND_LINES + 400


def test_samples_of_two_phases_are_not_merged() -> None:
    cell = Cell(HOST, phase="prefill").run(50.1)
    cell.phase = "decode"
    lines = recording(cell.run(100.0))
    thinned = thin(lines)
    last_prefill = [line for line in lines if line["progress"]["phase"] == "prefill"][-1]

    assert last_prefill["monotonic_s"] in {line["monotonic_s"] for line in thinned}


def test_the_worse_lateness_stays() -> None:
    lines = recording(Cell(HOST).run(100.0))
    lines[10]["late_s"] = 2.5

    assert max(line["late_s"] for line in thin(lines)) == 2.5
