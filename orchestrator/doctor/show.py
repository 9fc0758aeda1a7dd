"""Owns how the doctor's findings are told: lines for people, a document for programs. Does not look or judge."""

from __future__ import annotations

import dataclasses
import json
import sys

from orchestrator.doctor.checks import State
from orchestrator.doctor.examine import examine
from orchestrator.quantities import printable
from orchestrator.report.terminal import result_console


def show_checks(*, as_json: bool) -> bool:
    """Looks, and prints what was seen; whether nothing failed."""
    checks = examine()
    if as_json:
        print(json.dumps({"schema": 1, "checks": [dataclasses.asdict(check) for check in checks]}, indent=1))
    else:
        console = result_console(sys.stdout)
        for check in checks:
            remedy = f"\n      -> {check.remedy}" if check.remedy else ""
            console.print(f"{check.state:4}  {check.name}: {printable(check.seen)}{remedy}", soft_wrap=True)
    return all(check.state is not State.FAIL for check in checks)
