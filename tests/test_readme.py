"""The README is true: each of its commands runs, in order, in a copy of the checkout; its links lead somewhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
_SHELL = re.compile(r"```sh\n(.*?)```", re.DOTALL)
_LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")


def commands() -> list[str]:
    return [line for block in _SHELL.findall(README) for line in block.splitlines() if line.strip()]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The tracked files as they are, with the environment of this test run as `.venv`."""
    checkout = tmp_path / "wallfinder"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, check=True).stdout
    for name in filter(None, os.fsdecode(listed).split("\0")):
        if (REPOSITORY / name).is_file():
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, checkout / name)
    (checkout / ".venv").symlink_to(sys.prefix, target_is_directory=True)
    return checkout


# What runs elsewhere: this very test run, and the real wall, whose plan tests/test_real_wall.py runs.
ELSEWHERE = {"make test", "sudo .venv/bin/wallfinder run configs/wall-linux.yaml"}


@pytest.mark.slow
def test_every_command_runs(copy: Path) -> None:
    ran = []
    for command in commands():
        if command in ELSEWHERE:
            continue
        # The environment is set up already; without -o make would install it anew.
        line = command.replace("make ", "make -o .venv/.ready ") if command.startswith("make") else command
        done = subprocess.run(["sh", "-c", line], cwd=copy, capture_output=True, text=True, check=False, timeout=200)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        assert done.stdout
        ran.append(command)
    assert len(ran) >= 6
    assert any(command.startswith("make smoke") for command in ran)


def test_ci_runs_what_is_run_elsewhere() -> None:
    assert "make test" in (REPOSITORY / ".ci" / "run").read_text()
    assert set(commands()) >= ELSEWHERE


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = _LINK.findall(page.read_text(encoding="utf-8"))
    broken = [target for target in targets if not (page.parent / target).exists()]
    assert not broken


def test_every_exit_code_is_told() -> None:
    from orchestrator.errors import Exit

    for code in Exit:
        assert re.search(rf"\b{int(code)}\b", README), code
