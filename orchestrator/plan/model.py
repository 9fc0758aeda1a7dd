"""Owns the Plan: its keys, their types, defaults and meanings. Reads no file and judges no key by another.

The docstring under each key is its description in the JSON Schema and in docs/plan.md; schema.py reads them from here,
since pydantic would parse this file at each start. `Settings` holds what may differ by variant, `SweepKeys` what
belongs to the whole sweep; `PlanFile` is a plan as written, `Plan` as resolved. Attributes that hold seconds are named
`*_s` where the key, which has its unit in its value, is not.
"""

import functools
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from orchestrator.cells import Cell
from orchestrator.plan.quantities import Share
from orchestrator.plan.source import Model, ModelRef, Synthetic, model_ref
from orchestrator.plan.text_types import (
    Deadline,
    deadline_text,
    environment,
    fault_table,
    plan_name,
    revision_text,
    variant_name,
)
from orchestrator.plan.types import (
    Choice,
    ListOf,
    WholeOr,
    duration,
    flag,
    number,
    only_default,
    optional_size,
    optional_whole,
    share,
    whole,
)
from worker.repeats import Repeats

_Rule: TypeAlias = tuple[tuple[str, ...], tuple[int, ...], tuple[int, ...]]  # variants, contexts, batches to leave out

MAX_CELLS = 100_000
MAX_BATCH = 65_536
MAX_CONTEXT = 16_777_216
MAX_GEN_TOKENS = 1_048_576
MAX_REPS = 1_000

Batches: TypeAlias = Annotated[
    tuple[Annotated[int, whole(1, MAX_BATCH)], ...], ListOf("batch sizes", "[1, 2, 4, 8]", required=True)
]
Contexts: TypeAlias = Annotated[
    tuple[Annotated[int, whole(2, MAX_CONTEXT)], ...], ListOf("context lengths", "[512, 4096]", required=True)
]
Seconds: TypeAlias = Annotated[float, duration()]
SomeSeconds: TypeAlias = Annotated[float, duration(0.001)]
VariantNameText: TypeAlias = Annotated[str, variant_name()]
PartShare: TypeAlias = Annotated[Share, share()]


class Strict(BaseModel):
    """Frozen, and no key that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)


class SwapGrowth(Strict):
    soft: PartShare = Share(frac=0.01)
    """Swap over the cell's baseline that counts as a sign; two signs together end the cell."""
    hard: PartShare = Share(frac=0.08)
    """Swap over the cell's baseline that ends the cell by itself."""


class StepInflation(Strict):
    soft: Annotated[float, number(1.01, 1e6)] = 2.5
    """Decode steps this many times slower than expected are a sign."""
    hard: Annotated[float, number(1.01, 1e6)] = 6.0
    """Decode steps this many times slower than expected end the cell once they last."""
    sustained_s: SomeSeconds = Field(5.0, alias="sustained")
    """How long steps have to stay slow before `hard` acts."""


class Stall(Strict):
    soft_s: SomeSeconds = Field(20.0, alias="soft")
    """Time without progress that is a sign; longer where steps or chunks are expected to take long."""
    hard_s: SomeSeconds = Field(60.0, alias="hard")
    """Time without progress that ends the cell; longer where steps or chunks are expected to take long."""


class Pressure(Strict):
    level: Annotated[Literal["warning", "critical"], Choice()] = "critical"
    """The system's memory pressure that counts."""
    sustained_s: SomeSeconds = Field(5.0, alias="sustained")
    """How long the pressure has to last."""


class Footprint(Strict):
    limit: PartShare = Share(frac=0.95)
    """The worker's own memory that ends the cell."""


class Watchdog(Strict):
    mode: Annotated[Literal["enforce", "observe"], Choice()] = "enforce"
    """observe: record what would have been done, and let the cell run to its end or its time limit."""
    sample_every_s: Annotated[float, duration(0.01, 10.0)] = Field(0.1, alias="sample_every")
    """Time between two samples of the host and the worker."""
    swap_growth: SwapGrowth = SwapGrowth()
    """Swap over the cell's own baseline."""
    step_inflation: StepInflation = StepInflation()
    """Decode steps against the cell's own and the smaller cells' steps."""
    stall: Stall = Stall()
    """Time without any progress mark."""
    pressure: Pressure = Pressure()
    """The system's own word on memory pressure."""
    footprint: Footprint = Footprint()
    """The worker's own memory."""


class Retries(Strict):
    crashed: Annotated[int, whole(0, 100)] = 1
    """How often a crashed cell is tried again."""
    failed: Annotated[int, whole(0, 100)] = 0
    """How often a failed cell is tried again."""


class Cooldown(Strict):
    min_s: Seconds = Field(0.0, alias="min")
    """Pause after each cell, at least."""
    max_s: Seconds = Field(120.0, alias="max")
    """How long to wait for memory to come back to the baseline, at most."""
    on_timeout: Annotated[Literal["stop", "mark"], Choice()] = "stop"
    """When memory did not come back: stop the sweep, or go on and mark the cells that follow."""


class AdaptiveReps(Strict):
    min: Annotated[int, whole(1, MAX_REPS)] = 3
    """Repetitions at least."""
    max: Annotated[int, whole(1, MAX_REPS)] = 15
    """Repetitions at most."""
    until_cv: Annotated[float, number(1e-6, 1.0)] = 0.03
    """Enough once the robust CV of their rates (IQR over median) is at most this."""
    max_time_s: SomeSeconds = Field(300.0, alias="max_time")
    """Enough once they took so long, `min` all the same."""


class Exclude(Strict):
    contexts: Contexts = ()
    """Context lengths; left out: all of them."""
    batches: Batches = ()
    """Batch sizes; left out: all of them."""
    variants: Annotated[tuple[VariantNameText, ...], ListOf("variant names", "[kv8]")] = ()
    """Variant names; left out: all of them."""


class Settings(Strict):
    """What one cell is measured with; each of these keys may differ by variant."""

    model: Annotated[str | Synthetic, Model()]
    """A hub id, a folder with an MLX model, or `synthetic:` with a config and random weights."""
    gen_tokens: Annotated[int, whole(2, MAX_GEN_TOKENS)] = 64
    """Tokens generated per stream; the decode window is one step shorter, so two is the least."""
    reps: Annotated[int | AdaptiveReps, WholeOr(1, MAX_REPS, AdaptiveReps)] = 5
    """Measured repetitions of a cell: so many, or as many as it takes until they agree."""
    warmup: Annotated[int, whole(0, 1_000)] = 1
    """Repetitions before them that are not measured."""
    seed: Annotated[int, whole(0, 2**32 - 1)] = 0
    """Seed of the prompts and of random weights."""
    engine: Annotated[Literal["batched", "lockstep", "faulty"], Choice()] = "batched"
    """batched: mlx-lm's BatchGenerator; lockstep: one model call for all rows; faulty: plays faults."""
    context_fill: Annotated[Literal["prefill", "random"], Choice()] = "prefill"
    """prefill: the context is computed; random: its cache gets random values, which cost decode the same."""
    prefill_step_size: Annotated[int, whole(1, MAX_CONTEXT)] = 2048
    """Tokens of a prefill chunk."""
    prefill_logits: Annotated[Literal["last", "all"], Choice()] = "last"
    """Which logits a prefill chunk evaluates; all needs engine lockstep, and much memory."""
    kv_bits: Annotated[Literal[4, 8] | None, Choice()] = None
    """Bits of a quantized KV cache; null keeps the model's own type."""
    kv_group_size: Annotated[Literal[32, 64, 128], Choice()] = 64
    """Values that share a scale in a quantized KV cache."""
    cell_time_limit: SomeSeconds = 1800.0
    """The longest a cell may take; then it is `timed_out`."""
    worker_memory: Annotated[int | None, optional_size(16_000_000, 1 << 60)] = None
    """Linux, as root: bound of the worker's memory, swap still allowed; shares of memory are then of this."""
    env: Annotated[dict[str, str], environment()] = Field(default_factory=dict)
    """Extra environment variables of the worker; a variant's are added to the plan's."""
    wired_limit: Annotated[Literal["default", "off"], Choice()] = "default"
    """off leaves MLX's wired limit alone; kernel panics were seen with it on."""
    trust_remote_code: Annotated[bool, flag()] = False
    """Whether code that comes with the model may run on this machine."""
    revision: Annotated[str | None, revision_text()] = None
    """Branch, tag or commit of a hub model; null takes the newest and records which."""
    watchdog: Watchdog = Watchdog()
    """When a cell has hit the wall."""
    faults: Annotated[dict[str, str], fault_table()] = Field(default_factory=dict)
    """Engine faulty: cell id (or a glob of it) to the fault that is played; the first that matches counts."""

    @property
    def repeats(self) -> Repeats:
        """How often a cell is measured."""
        if isinstance(self.reps, int):
            return Repeats(self.reps, self.reps)
        return Repeats(self.reps.min, self.reps.max, self.reps.until_cv, self.reps.max_time_s)

    @property
    def model_ref(self) -> ModelRef:
        """The model by kind: hub, folder or synthetic."""
        return model_ref(self.model)


class Variant(Settings):
    """A named set of settings, resolved: what the variant does not say is the plan's."""

    name: VariantNameText


class VariantFile(Settings):
    """A variant as written: `name`, and the keys in which it differs from the plan."""

    name: VariantNameText
    """The variant's name; cells are called NAME/c04096-b016."""
    model: Annotated[str | Synthetic, Model()] = ""
    """A model of the variant's own; `revision` and `trust_remote_code` then start from their defaults."""


class SweepKeys(Strict):
    """What belongs to the whole sweep and cannot differ by variant."""

    batches: Batches
    """Batch sizes: how many streams are decoded at once."""
    contexts: Contexts
    """Context lengths in tokens, before the first generated one."""
    order: Annotated[Literal["safest_first", "as_written"], Choice()] = "safest_first"
    """safest_first: smallest predicted memory first; as_written: variant by variant, context by context."""
    after_wall: Annotated[Literal["skip_dominated", "run_all"], Choice()] = "skip_dominated"
    """Whether cells that need more than one that hit the wall are skipped."""
    retries: Retries = Retries()
    """How often a cell is tried again."""
    deadline: Annotated[Deadline | None, deadline_text()] = None
    """Clock time in quotes ("07:00") or duration (8h): no cell is started after it, exit code 124."""
    cooldown: Cooldown = Cooldown()
    """The pause between cells, in which memory comes back."""
    interleave: Annotated[bool, flag()] = False
    """Repetitions of all cells in turn, each in a process of its own, so that a slow hour falls on all alike."""
    sentinel: Annotated[int | None, optional_whole(1, MAX_CELLS)] = None
    """After so many cells the first valid one is measured again; what lies beside a change is marked `drifted`."""


class Later(Strict):
    """Keys of later versions: accepted at their default only."""

    admission: Annotated[Any, only_default({"limit": "90%", "action": "run"})] = Field(
        default={"limit": "90%", "action": "run"}
    )
    """Not in this version: what to do with a cell that is predicted to need too much."""
    refine: Annotated[bool, only_default(False)] = False
    """Not in this version: find the wall between two batch sizes."""
    notify: Annotated[None, only_default(None)] = None
    """Not in this version: tell somebody when the sweep ends."""
    fleet: Annotated[None, only_default(None)] = None
    """Not in this version: several machines."""


class Plan(Later, SweepKeys, Settings):
    """A whole plan, resolved to plain values: what `load_plan` gives."""

    name: Annotated[str, plan_name()]
    variants: tuple[Variant, ...] = ()
    exclude: tuple[Exclude, ...] = ()

    def settings(self, variant: str | None) -> Settings:
        """What the cells of a variant (None: of a plan without variants) are measured with.

        Raises:
            KeyError: the plan has no such variant.
        """
        if variant is None:
            return Settings.model_construct(**{key: getattr(self, key) for key in Settings.model_fields})
        for candidate in self.variants:
            if candidate.name == variant:
                return candidate
        raise KeyError(variant)

    def cells(self) -> tuple[Cell, ...]:
        """The cells in the order written: variant, then context, then batch; excluded ones left out."""
        return grid(self.variants, self.contexts, self.batches, self.exclude)


class PlanFile(Later, SweepKeys, Settings):
    """The plan of a wallfinder sweep."""

    name: Annotated[str, plan_name()] = ""
    """The sweep's name and that of its run directory; left out: the plan file's name."""
    variants: Annotated[tuple[VariantFile, ...], ListOf("variants", "[{name: kv8, kv_bits: 8}]", unique=False)] = ()
    """A third axis: every context and batch is measured once per variant."""
    exclude: Annotated[
        tuple[Exclude, ...], ListOf("exclusions", "[{contexts: [32768], batches: [32]}]", unique=False)
    ] = ()
    """Cells to leave out: each entry stands for all combinations of its lists."""


def grid(
    variants: tuple[Variant, ...] | tuple[VariantFile, ...],
    contexts: tuple[int, ...],
    batches: tuple[int, ...],
    exclude: tuple[Exclude, ...],
) -> tuple[Cell, ...]:
    """The cells of the axes in the order written, without those that an entry of `exclude` covers."""
    names = tuple(variant.name for variant in variants) or (None,)
    return _grid(names, contexts, batches, tuple((rule.variants, rule.contexts, rule.batches) for rule in exclude))


@functools.lru_cache(maxsize=2)  # every part of a command asks for the cells of the one plan that it is about
def _grid(
    names: tuple[str | None, ...], contexts: tuple[int, ...], batches: tuple[int, ...], rules: tuple[_Rule, ...]
) -> tuple[Cell, ...]:
    # By row of the grid: a thousand rules over a hundred thousand cells are then still quick.
    left_out: dict[tuple[str | None, int], set[int]] = {}
    for rule in dict.fromkeys(rules):
        for name in rule[0] or names:
            for context in rule[1] or contexts:
                left_out.setdefault((name, context), set()).update(rule[2] or batches)
    nothing: set[int] = set()
    return tuple(
        Cell(name, context, batch)
        for name in names
        for context in contexts
        for left in (left_out.get((name, context), nothing),)
        for batch in batches
        if batch not in left
    )
