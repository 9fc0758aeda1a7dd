"""When a cell has been repeated often enough; in the worker, for real, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from worker_driver import Driver, make_spec

from worker.protocol import Done, RepResult
from worker.repeats import Repeats

if TYPE_CHECKING:
    from pathlib import Path

FIXED = Repeats(3, 3)
ADAPTIVE = Repeats(3, 6, 0.03, 300.0)
EVEN = [100.0, 101.0, 100.0, 99.0, 100.0, 100.0]
WILD = [100.0, 150.0, 60.0, 130.0, 80.0, 100.0]


@pytest.mark.parametrize(
    ("repeats", "rates", "measured_s", "enough"),
    [
        (FIXED, EVEN[:2], 1e6, False),
        (FIXED, WILD[:3], 0.0, True),
        (ADAPTIVE, EVEN[:2], 1e6, False),
        (ADAPTIVE, EVEN[:3], 1.0, True),
        (ADAPTIVE, WILD[:3], 1.0, False),
        (ADAPTIVE, WILD[:3], 300.0, True),
        (ADAPTIVE, WILD[:5], 1.0, False),
        (ADAPTIVE, WILD, 1.0, True),
        (Repeats(1, 6, 0.03, 300.0), EVEN[:2], 1.0, False),  # two values have no spread
        (Repeats(3, 6, 0.03, 300.0), [0.0, 0.0, 0.0], 1.0, False),
    ],
)
def test_enough(repeats: Repeats, rates: list[float], measured_s: float, enough: bool) -> None:
    assert repeats.enough(rates, measured_s) is enough


def measured(folder: Path, **changes: object) -> list[RepResult]:
    with Driver(make_spec(**changes), folder) as worker:
        ended = worker.wait()
    found = [message for message in ended.messages if isinstance(message, RepResult)]
    assert ended.last == Done(reps=len(found))
    assert [rep.rep for rep in found] == list(range(len(found)))
    return found


def test_a_worker_stops_as_soon_as_its_repetitions_agree(tmp_path: Path) -> None:
    assert len(measured(tmp_path, reps=9, least_reps=4, until_cv=1e6, max_reps_s=300.0)) == 4


def test_a_worker_goes_on_to_the_most_while_they_do_not(tmp_path: Path) -> None:
    assert len(measured(tmp_path, reps=6, least_reps=3, until_cv=1e-9, max_reps_s=300.0)) == 6


def test_a_worker_stops_when_its_time_is_over(tmp_path: Path) -> None:
    assert len(measured(tmp_path, reps=9, least_reps=3, until_cv=1e-9, max_reps_s=1e-3)) == 3


def test_a_fixed_number_is_that_number(tmp_path: Path) -> None:
    assert len(measured(tmp_path, reps=5)) == 5
