"""A run goes on only where it began: on the same machine, with the same versions, unless somebody says otherwise."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from sweeps import desk

from orchestrator.comparable import host_changes

if TYPE_CHECKING:
    from pathlib import Path

HOST: dict[str, Any] = {
    "chip": "Apple M4 Max",
    "memory_bytes": 137_438_953_472,
    "wired_limit_bytes": 0,
    "python": "3.12.1",
    "boot_id": "a",
    "swap_used_bytes": 0,
    "versions": {"mlx": "0.32.4", "mlx-lm": "0.32.2", "psutil": "7.0"},
}


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({}, []),
        ({"boot_id": "b", "swap_used_bytes": 10**9}, []),
        ({"versions": {"mlx": "0.32.4", "mlx-lm": "0.32.2", "psutil": "8.0"}}, []),
        ({"versions": {"mlx": "0.33.0", "mlx-lm": "0.32.2"}}, ["mlx: 0.32.4 -> 0.33.0"]),
        ({"chip": "Apple M5"}, ["chip: Apple M4 Max -> Apple M5"]),
        ({"wired_limit_bytes": 1 << 36}, ["wired_limit_bytes: 0 -> 68719476736"]),
        ({"versions": {}, "chip": None}, []),  # a record of an older version knows less
        ({"versions": "mended by hand"}, []),
    ],
)
def test_what_is_another_host(changed: dict[str, Any], found: list[str]) -> None:
    assert host_changes(HOST, {**HOST, **changed}) == found


def test_a_run_does_not_go_on_with_another_mlx_unless_it_is_told(tmp_path: Path) -> None:
    with desk(tmp_path) as at:
        at.run(at.plan(faults={"c00064-b002": "segfault"}), "--plain")
        journal = at.runs / "night/journal.jsonl"
        lines = [json.loads(line) for line in journal.read_bytes().splitlines()]
        lines[0]["host"]["versions"]["mlx"] = "0.1.0"
        journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
        before = journal.read_bytes()

        refused = at.resume("night", "--retry", "crashed")
        assert refused.returncode == 2
        assert "mlx: 0.1.0 -> " in refused.stderr
        assert "--other-host" in refused.stderr
        assert journal.read_bytes() == before  # nothing was begun, nothing was written

        accepted = at.resume("night", "--retry", "crashed", "--other-host", "--plain")
        assert accepted.returncode in (0, 1), accepted.stderr
        assert "the host changed during the run: mlx: 0.1.0 -> " in at.call("status", at.runs / "night").stdout
        # What was accepted is the host from now on.
        assert at.resume("night", "--retry", "crashed").returncode in (0, 1)
