"""Owns what the ledger holds of a cell: verdicts, and one frozen record per ended attempt.

Does not decide verdicts (verdict.py) and does not write anything (ledger.py).
"""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter


class Verdict(enum.StrEnum):
    """What became of a cell."""

    COMPLETED = "completed"
    HIT_THE_WALL = "hit_the_wall"
    HOST_DIED = "host_died"
    TIMED_OUT = "timed_out"
    CRASHED = "crashed"
    FAILED = "failed"
    SKIPPED = "skipped"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class PhaseMemory:
    """Memory of one phase in bytes: MLX's peak in it, MLX's active and cached bytes at its end, the system's footprint.

    The footprint is the largest that the watchdog saw in the phase. None where a figure is not known.
    """

    peak_bytes: int | None = None
    active_bytes: int | None = None
    cache_bytes: int | None = None
    footprint_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Metrics:
    """What was measured, over all finished repetitions; None where nothing was.

    Rates are medians over repetitions of the rate of each repetition's decode window: tokens per second over all
    rows, per row, and milliseconds per token of one row; `rep_tps` holds those of all repetitions, `generation_tps_low`
    and `_high` the 95 % interval of the median. `generation_tps_mlxlm` is by mlx-lm's own formula (definitions.py).
    `robust_cv` is IQR over median of `generation_tps`, `iqr_tps` the IQR itself. `drift_frac` is the change of the rate
    from the first repetition to the last over the median, `drift_p` the chance of such an order by accident;
    `warmup_frac` how far the first one was below the median of the others. `step_p95_s` and `step_p99_s` are None where
    too few steps lie beyond them.

    Memory in bytes; `peak_phase` says which of load, prefill and decode owns `peak_memory_bytes`, `peak_terms` what it
    consists of and `peak_term` the largest part. `filled_tokens` of the context's tokens, all rows, were written into
    the cache at random.
    """

    reps: int = 0
    generation_tps: float | None = None
    generation_tps_per_stream: float | None = None
    tpot_ms: float | None = None
    prompt_tps: float | None = None
    ttft_s: float | None = None
    robust_cv: float | None = None
    iqr_tps: float | None = None
    generation_tps_low: float | None = None
    generation_tps_high: float | None = None
    generation_tps_mlxlm: float | None = None
    rep_tps: tuple[float, ...] = ()
    drift_frac: float | None = None
    drift_p: float | None = None
    warmup_frac: float | None = None
    step_s: float | None = None
    step_p95_s: float | None = None
    step_p99_s: float | None = None
    peak_memory_bytes: int | None = None
    peak_phase: str | None = None
    load_peak_bytes: int | None = None
    prefill_peak_bytes: int | None = None
    decode_peak_bytes: int | None = None
    phases: dict[str, PhaseMemory] = field(default_factory=dict)
    peak_terms: dict[str, int] = field(default_factory=dict)
    peak_term: str | None = None
    weight_bytes: int | None = None
    kv_cache_bytes: int | None = None
    cache_bytes_per_token: float | None = None
    cache_classes: tuple[str, ...] = ()
    load_s: float | None = None
    filled_tokens: int = 0


@dataclass(frozen=True, slots=True)
class WouldHave:
    """What a watchdog that only observed would first have ended the cell for, how long into the attempt, and why."""

    cause: str
    after_s: float
    evidence: dict[str, float | int | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CellRecord:
    """One ended attempt, or a skipped cell (`attempt` 0).

    `memory_wall` says that memory ended it, so that it speaks for larger cells too,
    `stops_variant` that no cell of the variant can do better (its model does not load), `retryable`
    that another attempt may end otherwise;
    `detail` is a sentence for people, `remedy` what they can do; `phase`, `rep`, `step` say where a broken attempt
    broke. `partial`: repetitions in turn, of which more are to come. `conditions` holds power and heat at start and end
    (conditions.py). `evidence` holds figures by name. Stamps are ISO 8601 in UTC, durations in seconds.
    """

    cell_id: str
    variant: str | None
    context: int
    batch: int
    attempt: int
    verdict: Verdict
    cause: str | None = None
    detail: str = ""
    remedy: str = ""
    evidence: dict[str, float | int | str] = field(default_factory=dict)
    valid: bool | None = None
    invalid_reasons: tuple[str, ...] = ()
    memory_wall: bool = False
    stops_variant: bool = False
    retryable: bool = True
    dominated_by: str | None = None
    metrics: Metrics = Metrics()
    peak_footprint_bytes: int | None = None
    swap_growth_bytes: int | None = None
    memory_bytes: int | None = None
    phase: str | None = None
    rep: int | None = None
    step: int | None = None
    exit_status: int | None = None
    signal: str | None = None
    rungs: tuple[tuple[str, float], ...] = ()
    watchdog_late_max_s: float | None = None
    would_have: WouldHave | None = None
    partial: bool = False
    conditions: dict[str, Any] = field(default_factory=dict)
    started_at: str = ""
    ended_at: str = ""
    duration_s: float = 0.0
    boot_id: str = ""

    def doubted(self, reason: str) -> CellRecord:
        """The record, not valid for one more reason."""
        reasons = dict.fromkeys((*self.invalid_reasons, reason))
        return dataclasses.replace(self, valid=False, invalid_reasons=tuple(reasons))

    def to_json(self) -> dict[str, Any]:
        """The record as plain JSON values."""
        return dataclasses.asdict(self)

    def to_journal(self) -> dict[str, Any]:
        """The record as a journal line has it: figures that were not measured are left out, and read back as such."""
        whole = self.to_json()
        empty = _EMPTY_METRICS
        whole["metrics"] = {name: value for name, value in whole["metrics"].items() if value != empty[name]}
        return whole

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> CellRecord:
        """The record of a journal line; keys this version does not know are left out.

        Raises:
            ValueError: a key is missing or of the wrong kind.
        """
        return _READER.validate_python(body)


_EMPTY_METRICS = dataclasses.asdict(Metrics())
_READER: TypeAdapter[CellRecord] = TypeAdapter(CellRecord)
