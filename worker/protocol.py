"""Owns what the orchestrator and a worker say to each other: one JSON object per line, versioned.

Does not own the pipes. Standard library only, so that both sides and the watchdog's tests may import it.

The orchestrator writes one `WorkerSpec` line to the worker's control pipe and then keeps that pipe open as a
lifeline: its end means that the orchestrator is gone. The worker writes messages to the result pipe: `Hello`
once, `ModelFacts` once, a `RepResult` per measured repetition, and last `Done`, `Stopped` or `Failure`. A
stream without such a last message is a crash, whatever the exit status says.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from worker.repeats import Repeats

PROTOCOL = 1
FAILURE_KINDS = (
    "model_not_found",  # no such folder, no config.json, no weights in it
    "unsupported_model",  # this mlx-lm does not know the architecture
    "remote_code",  # the model brings Python code of its own and the plan does not allow it
    "bad_config",  # the config lacks values or has wrong ones
    "bad_weights",  # weight files are damaged or do not belong to the config
    "not_batchable",  # mlx-lm cannot batch this architecture's caches
    "kv_bits_unsupported",  # its caches cannot be quantized
    "fill_unsupported",  # its caches cannot be filled at random
    "rows_short",  # a step did not hold all rows
    "bad_fault",  # the faulty engine does not know the fault
    "protocol",  # the worker was started by hand or by another version
    "error",  # MLX or Python raised; `text` and `traceback` say what
)


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a worker's model comes from.

    Exactly one of `path` (a folder with config.json and safetensors) and `config_json` (text of a config
    whose weights are made up at random) is set. `dtype` (float32, float16, bfloat16) and `quantization` apply
    to random weights only.
    """

    path: str | None = None
    config_json: str | None = None
    dtype: str | None = None
    quantization_bits: int | None = None
    quantization_group_size: int | None = None
    trust_remote_code: bool = False


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """Everything one attempt needs to know.

    `reps` repetitions are measured; where `least_reps` is given, at least that many, and no more once the robust CV of
    their rates is at most `until_cv` or they took `max_reps_s` seconds (repeats.py).

    `backstop_s` is the worker's kernel timer: the least time without progress after which it ends itself. It
    has to be longer than the watchdog waits for a first mark (backstops.KernelTimer).
    """

    cell_id: str
    attempt: int
    serial: int
    model: ModelSource
    batch: int
    context: int
    gen_tokens: int
    reps: int
    warmup: int
    seed: int
    engine: str
    context_fill: str
    prefill_step_size: int
    prefill_logits: str
    kv_bits: int | None
    kv_group_size: int
    wired_limit: str
    backstop_s: float
    fault: str | None = None
    least_reps: int | None = None
    until_cv: float | None = None
    max_reps_s: float | None = None
    protocol: int = PROTOCOL

    @property
    def repeats(self) -> Repeats:
        """How often to measure."""
        return Repeats(self.least_reps or self.reps, self.reps, self.until_cv, self.max_reps_s)


@dataclass(frozen=True, slots=True)
class Hello:
    """The worker is up. `device` is MLX's default device, `versions` maps package to version.

    `switches` holds the environment variables that change what MLX or Metal does, wherever they were set.
    """

    type: ClassVar[str] = "hello"
    pid: int
    protocol: int
    device: str
    versions: dict[str, str] = field(default_factory=dict)
    backstops: dict[str, str] = field(default_factory=dict)
    device_info: dict[str, int | str] = field(default_factory=dict)
    switches: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What was loaded and what the caches are.

    `cache_classes` names the class of each layer's cache as it ran. Of one row, over all layers:
    `cache_bytes_per_token` is what grows with every token (None where nothing does), `window_bytes_per_token` what
    grows only up to a sliding window, by the window's size in tokens, `state_bytes_per_row` what has one size from
    the first token on. `wired_limit` says what became of MLX's wired limit. `load_active_bytes` and
    `load_cache_bytes` are the allocator's figures after loading; `shape` holds the config's sizes by their names
    there, and `dtype_bytes`, the bytes of one activation.
    """

    type: ClassVar[str] = "model"
    model_type: str
    parameters: int
    weight_bytes: int
    vocab_size: int
    load_s: float
    load_peak_bytes: int
    cache_classes: list[str]
    cache_bytes_per_token: float | None
    kv_bits: int | None
    wired_limit: str
    quantization: dict[str, int | str] | None = None
    window_bytes_per_token: dict[str, float] = field(default_factory=dict)
    state_bytes_per_row: int = 0
    load_active_bytes: int = 0
    load_cache_bytes: int = 0
    shape: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RepResult:
    """One measured repetition; every raw step time is kept. Durations in seconds, memory in bytes.

    `step_s` holds the G-1 steps of the decode window; `rows_per_step` the number of rows each of them
    produced; `prefill_s` ends when all first tokens exist, so it is also the time to first token.
    `prompt_tokens` counts tokens of all rows that went through the model; `filled_tokens` those whose keys
    and values were written at random instead: where it is not 0, `prefill_s` says nothing about prompt speed.
    `tokens_digest` is the same for the same greedy tokens, empty where an engine makes none. `started_s` and
    `ended_s` are `time.monotonic()`. `first_step_peak_bytes` is the peak from the first tokens to the end of
    the first decode step, 0 where there is none; docs/measurement.md says to which phase's peak it belongs.
    `active_bytes` and `cache_bytes` are the allocator's at the end of the decode window, `prefill_active_bytes` and
    `prefill_cache_bytes` when the first tokens exist.
    """

    type: ClassVar[str] = "rep"
    rep: int
    prefill_s: float
    prompt_tokens: int
    chunk_s: list[float]
    step_s: list[float]
    rows_per_step: list[int]
    generated_tokens: int
    finite_logits: bool
    constant_logits: bool
    prefill_peak_bytes: int
    decode_peak_bytes: int
    active_bytes: int
    cache_bytes: int
    kv_cache_bytes: int
    started_s: float
    ended_s: float
    filled_tokens: int = 0
    tokens_digest: str = ""
    first_step_peak_bytes: int = 0
    prefill_active_bytes: int = 0
    prefill_cache_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Done:
    """All repetitions were measured."""

    type: ClassVar[str] = "done"
    reps: int


@dataclass(frozen=True, slots=True)
class Stopped:
    """The worker saw the stop flag and ended by itself."""

    type: ClassVar[str] = "stopped"
    phase: str
    rep: int
    step: int


@dataclass(frozen=True, slots=True)
class Failure:
    """The worker could not do what was asked, or MLX raised.

    `kind` is one of FAILURE_KINDS; `text` is the error's own words, `remedy` what to do.
    """

    type: ClassVar[str] = "failure"
    kind: str
    text: str
    remedy: str
    phase: str
    traceback: str = ""


Message: TypeAlias = Hello | ModelFacts | RepResult | Done | Stopped | Failure
_KINDS: dict[str, type[Message]] = {c.type: c for c in (Hello, ModelFacts, RepResult, Done, Stopped, Failure)}


class ProtocolError(ValueError):
    """A line on the result pipe that is not a message of this version."""


def encode(message: Message) -> bytes:
    """One line, newline included, ASCII only."""
    body: dict[str, Any] = {"type": message.type, **dataclasses.asdict(message)}
    return json.dumps(body, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Message:
    """The message of one line.

    Raises:
        ProtocolError: the line is torn, or not a message of this version.
    """
    try:
        body = json.loads(line)
        return _KINDS[body.pop("type")](**body)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProtocolError(f"not a worker message: {line[:200]!r}") from error


def encode_spec(spec: WorkerSpec) -> bytes:
    """The spec as one line, newline included."""
    return json.dumps(dataclasses.asdict(spec), separators=(",", ":")).encode() + b"\n"


def decode_spec(line: bytes) -> WorkerSpec:
    """The spec of one line.

    Raises:
        ProtocolError: the line is torn or was written by another version.
    """
    try:
        body = json.loads(line)
        if body.get("protocol") != PROTOCOL:
            raise ProtocolError(f"worker speaks protocol {PROTOCOL}, the spec {body.get('protocol')!r}")
        return WorkerSpec(**{**body, "model": ModelSource(**body["model"])})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, ProtocolError):
            raise
        raise ProtocolError(f"not a worker spec: {line[:200]!r}") from error
