"""Rows to report on: the published sweep that this project starts from, a small one, one full of trouble."""

from __future__ import annotations

from typing import Any

from orchestrator.cells import Cell
from orchestrator.records import CellRecord, Metrics, Verdict
from orchestrator.report.rows import CellRow

GIB48 = 48 * 2**30


def row(
    context: int,
    batch: int,
    verdict: Verdict | None = Verdict.COMPLETED,
    *,
    variant: str | None = None,
    tps: float | None = None,
    peak_gb: float | None = None,
    reps: int | None = None,
    attempts: int = 1,
    running: bool = False,
    owner: str = "prefill",
    cv: float = 0.012,
    ttft_s: float | None = None,
    **record: Any,
) -> CellRow:
    """One row; a verdict of None leaves the cell open."""
    cell = Cell(variant, context, batch)
    if verdict is None:
        return CellRow(cell, None, attempts if running else 0, running)
    metrics = Metrics()
    if tps is not None or peak_gb is not None:
        metrics = Metrics(
            reps=5 if reps is None else reps,
            generation_tps=tps,
            generation_tps_per_stream=tps / batch if tps else None,
            tpot_ms=1e3 * batch / tps if tps else None,
            ttft_s=context * batch / 1100 if ttft_s is None else ttft_s,
            robust_cv=cv,
            peak_memory_bytes=round(peak_gb * 1e9) if peak_gb is not None else None,
            peak_phase=owner if peak_gb is not None else None,
        )
    plain: dict[str, Any] = {
        "cell_id": cell.cell_id,
        "variant": variant,
        "context": context,
        "batch": batch,
        "attempt": attempts,
        "verdict": verdict,
        "valid": None if verdict is not Verdict.COMPLETED else not record.get("invalid_reasons"),
        "metrics": metrics,
        "memory_bytes": GIB48,
        "swap_growth_bytes": 0 if verdict is not Verdict.SKIPPED else None,
        "duration_s": 40.0,
    }
    return CellRow(cell, CellRecord(**{**plain, **record}), attempts, running)


def skipped(context: int, batch: int, by: str, variant: str | None = None) -> CellRow:
    return row(
        context,
        batch,
        Verdict.SKIPPED,
        variant=variant,
        cause="dominated",
        dominated_by=by,
        attempts=0,
        duration_s=0.0,
    )


def origin_rows() -> list[CellRow]:
    """Shaped like the published sweep: points that were not published are in between."""
    wall = {
        "cause": "swap_growth",
        "peak_footprint_bytes": 49_100_000_000,
        "swap_growth_bytes": 4_310_000_000,
        "evidence": {
            "rule": "slow and memory",
            "signals": "swap_growth+step_inflation",
            "swap_growth_bytes": 4_310_000_000,
            "swap_soft_bytes": 515_000_000,
            "step_s": 2.31,
            "step_inflation": 11.2,
        },
        "phase": "decode",
    }
    ends = {512: (9.4, 387.1), 4096: (15.6, 138.9), 16384: (30.5, 79.8)}
    rows = [row(512, b, tps=387.1 * (b / 32) ** 0.6, peak_gb=4.9 + 0.3 * b) for b in (1, 2, 4, 8, 16, 32)]
    rows += [row(4096, b, tps=50.2 * b**0.49, peak_gb=5.5 + 1.26 * b) for b in (1, 2, 4, 8)]
    rows += [row(4096, 16, tps=97.2, peak_gb=27.3, cv=0.31, invalid_reasons=("noisy", "swapped"))]
    rows += [row(4096, 32, Verdict.HIT_THE_WALL, tps=40.0, reps=1, peak_gb=50.3, **wall)]
    rows += [row(16384, b, tps=38.0 * b**0.5, peak_gb=6.0 + 3.06 * b) for b in (1, 2, 4)]
    rows += [row(16384, 8, tps=ends[16384][1], peak_gb=30.5, cv=0.14, invalid_reasons=("noisy",))]
    rows += [row(16384, 16, Verdict.HIT_THE_WALL, **{**wall, "phase": "prefill"})]
    rows += [skipped(16384, 32, "c16384-b016")]
    rows += [row(32768, 1, tps=29.0, peak_gb=11.2), row(32768, 2, None, running=True), row(32768, 4, None)]
    rows += [skipped(32768, b, "c16384-b016") for b in (8, 16, 32)]
    return rows


def smoke_rows() -> list[CellRow]:
    """A tiny sweep with variants on a small machine."""
    memory = {"memory_bytes": 8 * 10**9}
    return [
        row(
            context,
            batch,
            variant=variant,
            tps=800.0 * batch**0.7,
            peak_gb=0.021 + 0.002 * batch,
            owner="decode",
            ttft_s=0.031 * batch,
            **memory,
        )
        for variant in ("kv16", "kv8")
        for context in (64, 128)
        for batch in (1, 4)
    ]


def trouble_rows() -> list[CellRow]:
    """Every verdict, and texts that try to break out."""
    hostile = "\x1b[2J\x1b]0;title\x07[red]bold[/red] {x} \u202etxt.exe\r\nsecond line\ttab \udc80"
    missing = {
        "cause": "model_not_found",
        "detail": "The model's folder has no config.json.",
        "remedy": "mend `model`",
    }
    return [
        row(512, 1, Verdict.COMPLETED, tps=7.5, peak_gb=1.0, attempts=2),
        row(512, 2, Verdict.CRASHED, cause="sigsegv", detail=hostile, remedy="see the [log]", attempts=2),
        row(
            512,
            4,
            Verdict.TIMED_OUT,
            cause="stalled",
            detail="Nothing moved any more.",
            evidence={"progress_age_s": 61.2},
        ),
        row(512, 8, Verdict.HOST_DIED, cause="reboot", detail="The machine went down while this cell ran."),
        row(512, 16, Verdict.INTERRUPTED, cause="interrupted"),
        row(512, 32, None),
        *(row(4096, batch, Verdict.FAILED, **missing) for batch in (1, 2, 4, 8, 16)),
        row(8192, 1, Verdict.HIT_THE_WALL, cause="kernel_oom", evidence={"oom_kills": 1, "unkillable": "yes"}),
        row(8192, 2, None, running=True, attempts=2),
        skipped(100_000, 1000, "c08192-b001"),
    ]
