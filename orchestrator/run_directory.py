"""Owns the layout of a run directory and how one comes to be. Does not read or write the journal's events."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.durable import replace_file, sync_folder
from orchestrator.errors import LedgerError, LedgerUnwritable

if TYPE_CHECKING:
    from worker.protocol import RepResult

PLAN = "plan.yaml"
HOST = "host.json"
JOURNAL = "journal.jsonl"
RESULT = "result.json"  # of an attempt, in its folder
RECORDING = "samples.jsonl"  # of an attempt, in its folder


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """One sweep's folder. It exists whole or not at all: `create` moves it into place when it is complete."""

    path: Path

    @property
    def plan_path(self) -> Path:
        """The frozen plan."""
        return self.path / PLAN

    def attempt_folder(self, cell_id: str, attempt: int) -> Path:
        """Makes the folder of one attempt. Raises LedgerUnwritable where the disk does not allow it."""
        cells = self.path / "cells"
        folder = cells / cell_id / f"attempt-{attempt}"
        try:
            cells.mkdir(exist_ok=True)  # not its parents: a run directory that was moved away is not made anew
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LedgerUnwritable(f"{folder}: cannot be made: {error.strerror}") from error
        return folder

    def sentinel_folder(self, number: int) -> Path:
        """Makes the folder of one measurement of the reference cell. Raises LedgerUnwritable."""
        folder = self.path / "sentinel" / f"attempt-{number}"
        try:
            folder.parent.mkdir(exist_ok=True)
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise LedgerUnwritable(f"{folder}: cannot be made: {error.strerror}") from error
        return folder

    def read_reps(self, cell_id: str, attempt: int) -> list[RepResult]:
        """The repetitions of an ended attempt; none where its result is not there, or not whole, any more."""
        from worker.protocol import RepResult  # of no use to whoever only looks at a run

        path = self.path / "cells" / cell_id / f"attempt-{attempt}" / RESULT
        try:
            return [RepResult(**rep) for rep in json.loads(path.read_bytes())["reps"]]
        except (OSError, ValueError, KeyError, TypeError):
            return []

    def write_result(self, folder: Path, body: dict[str, Any]) -> None:
        """Puts everything that was measured in an attempt into its folder. Raises LedgerUnwritable."""
        path = folder / RESULT
        try:
            replace_file(path, json.dumps(body, indent=1).encode())
        except OSError as error:
            raise LedgerUnwritable(f"{path}: cannot be written: {error.strerror}") from error

    def add_models(self, models: dict[str, Any]) -> None:
        """Adds what is known of the models to host.json. Raises LedgerUnwritable."""
        path = self.path / HOST
        try:
            facts = json.loads(path.read_bytes())
            if facts.get("models") != models:
                replace_file(path, json.dumps({**facts, "models": models}, indent=1).encode())
        except FileNotFoundError:
            return  # somebody took it away; the journal has it all
        except (OSError, ValueError, AttributeError) as error:
            raise LedgerUnwritable(f"{path}: cannot be written: {error}") from error

    def freeze_plan(self, text: str) -> None:
        """Replaces the frozen plan by one that adds cells; the earlier one is kept beside it. Raises LedgerError."""
        try:
            number = len(list(self.path.glob("plan-*.yaml"))) + 1
            replace_file(self.path / f"plan-{number}.yaml", self.plan_path.read_bytes())
            replace_file(self.plan_path, text.encode())
        except OSError as error:
            raise LedgerError(f"{self.plan_path}: cannot be replaced: {error.strerror}") from error


def create(output_dir: Path, name: str, plan_text: str, host: dict[str, Any]) -> RunDirectory:
    """Makes a new run directory.

    Raises:
        FileExistsError: there is one of that name already (also when another process made it just now).
        LedgerError: the folder cannot be made.
    """
    target = output_dir / name
    staging = output_dir / f".{name}.{os.getpid()}.new"
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(output_dir, name)
        staging.mkdir()
        (staging / "cells").mkdir()
        replace_file(staging / PLAN, plan_text.encode())
        replace_file(staging / HOST, json.dumps(host, indent=1).encode())
        replace_file(staging / JOURNAL, b"")
        if target.exists():  # an empty folder of that name would be replaced without a word
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
        staging.rename(target)
        sync_folder(output_dir)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from error
        raise LedgerError(
            f"{error.filename or output_dir}: cannot be written: {error.strerror}; see --output-dir"
        ) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return RunDirectory(target)


def find(text: str, output_dir: Path = Path("runs")) -> RunDirectory:
    """The run directory that a person names: a folder, or the name of one under `output_dir`.

    Raises:
        LedgerError: there is no run directory of that name.
    """
    try:
        for path in (Path(text), output_dir / text):
            if (path / PLAN).is_file() and (path / JOURNAL).is_file():
                return RunDirectory(path)
    except OSError as error:  # a name that is too long, a folder that may not be entered
        raise LedgerError(f"{text}: cannot be read: {error.strerror}") from error
    there = (
        "is there, but is no run directory (no plan.yaml and journal.jsonl in it)"
        if Path(text).exists()
        else "is not there"
    )
    known = sorted(path.parent.name for path in output_dir.glob(f"*/{JOURNAL}"))
    more = f" and {len(known) - 8} more" if len(known) > 8 else ""
    hint = f"; runs in {output_dir}/: {', '.join(known[-8:])}{more}" if known else "; `wallfinder run PLAN` makes one"
    raise LedgerError(f"{text}: {there}{hint}")


def _remove_abandoned(output_dir: Path, name: str) -> None:
    """Takes away what a start of the same run left behind when it was killed before its folder was complete."""
    for path in output_dir.glob(f".{name}.*.new"):
        import psutil  # costs what reading a run does not need

        pid = path.name.removeprefix(f".{name}.").removesuffix(".new")
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            with contextlib.suppress(OSError):
                shutil.rmtree(path)
