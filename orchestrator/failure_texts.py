"""Owns the texts by which a dying worker gives itself away: one table, first hit wins.

Does not decide a verdict alone (verdict.py). Pure data and one look-up. The texts come from public reports
and from the sources of MLX, mlx-lm, huggingface_hub and transformers; docs/failures.md tells them to people.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from orchestrator.quantities import amount, printable, shortened
from orchestrator.records import Verdict

_LINE_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class FailureText:
    """One row. Named groups `n` and `m` of the pattern (counts; bytes where `bytes_quoted`) may be quoted in
    the sentence as `{n}` and `{m}`, `name` likewise.

    `native`: the text may come from native code that ends the process without a Python error, so it counts
    whatever the exit status was; other rows count only for an error that Python raised. `wall_with_evidence`:
    not a memory wall by itself, but one where the watchdog saw memory trouble.
    """

    name: str
    pattern: re.Pattern[str]
    verdict: Verdict
    cause: str
    sentence: str
    remedy: str
    memory_wall: bool = False
    retryable: bool = False
    stops_variant: bool = False
    stops_sweep: bool = False
    native: bool = False
    wall_with_evidence: bool = False
    bytes_quoted: bool = False


@dataclass(frozen=True, slots=True)
class Recognised:
    """A row that was found, and the line it was found in, safe to show."""

    row: FailureText
    line: str
    sentence: str


def _wall(name: str, pattern: str, cause: str, sentence: str, remedy: str, *, quoted: bool = False) -> FailureText:
    return FailureText(
        name,
        _compiled(pattern),
        Verdict.HIT_THE_WALL,
        cause,
        sentence,
        remedy,
        memory_wall=True,
        native=True,
        bytes_quoted=quoted,
    )


def _crash(
    name: str,
    pattern: str,
    cause: str,
    sentence: str,
    remedy: str,
    *,
    retry: bool,
    wall_with_evidence: bool = False,
) -> FailureText:
    return FailureText(
        name,
        _compiled(pattern),
        Verdict.CRASHED,
        cause,
        sentence,
        remedy,
        retryable=retry,
        native=True,
        wall_with_evidence=wall_with_evidence,
    )


def _fail(name: str, pattern: str, cause: str, sentence: str, remedy: str, *, stops_variant: bool) -> FailureText:
    return FailureText(name, _compiled(pattern), Verdict.FAILED, cause, sentence, remedy, stops_variant=stops_variant)


def _host(name: str, pattern: str, cause: str, sentence: str, remedy: str) -> FailureText:
    return FailureText(name, _compiled(pattern), Verdict.FAILED, cause, sentence, remedy, stops_sweep=True, native=True)


def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE | re.MULTILINE)


# The order is part of the table: memory before the GPU's other errors, those before Python's, the broad last.
TEXTS: tuple[FailureText, ...] = (
    # -- memory ended it
    _wall(
        "metal_oom",
        r"kIOGPUCommandBufferCallbackErrorOutOfMemory|Insufficient Memory\s+\(0*8\s*:"
        r"|Command buffer execution failed:\s*Insufficient Memory",
        "metal_oom",
        "Metal ran out of memory.",
        "smaller batch, shorter context, smaller prefill chunk or a quantized cache",
    ),
    _wall(
        "metal_buffer_too_big",
        r"Attempting to allocate (?P<n>\d+) bytes which is greater than\s+"
        r"the maximum allowed buffer size of (?P<m>\d+)",
        "metal_oom",
        "One buffer of {n} was asked for; this GPU allows {m} at most, however much memory is free.",
        "smaller prefill_step_size or batch: a cache or logits tensor is over the limit",
        quoted=True,
    ),
    _wall(
        "metal_alloc_fail",
        r"\[(?:metal::)?malloc(?:_or_wait)?\]\s*Unable to allocate(?: (?P<n>\d+) bytes)?",
        "metal_oom",
        "MLX could not allocate {n}.",
        "smaller batch, shorter context or a quantized cache",
        quoted=True,
    ),
    _wall(
        "cuda_oom",
        r"cudaErrorMemoryAllocation|cu(?:da)?\w*\b[^\n]*failed:\s*out of memory|CUDA error:? out of memory",
        "cuda_oom",
        "The CUDA device ran out of memory.",
        "smaller batch, shorter context or a quantized cache",
    ),
    _wall(
        "host_alloc_fail",
        r"std::bad_alloc|^MemoryError\b|\[Errno 12\]",
        "alloc_failed",
        "The system refused an allocation.",
        "smaller batch or shorter context; see whether a limit (ulimit, container) is in force",
    ),
    # -- the GPU's other errors
    _crash(
        "metal_resource_limit",
        r"Resource limit \((?P<n>\d+)\) exceeded",
        "metal_resource_limit",
        "Metal's limit of {n} buffers was reached; that counts buffers, not bytes.",
        "a fresh process cures it; fewer generated tokens or reps per process, or a cache cleared more often",
        retry=True,
    ),
    _crash(
        "gpu_timeout",
        r"kIOGPUCommandBufferCallbackErrorTimeout|Caused GPU Timeout Error",
        "gpu_timeout",
        "One GPU command buffer took too long.",
        "smaller prefill_step_size",
        retry=True,
        wall_with_evidence=True,
    ),
    _crash(
        "gpu_hang",
        r"kIOGPUCommandBufferCallbackErrorHang|Caused GPU Hang Error",
        "gpu_hang",
        "The GPU hung.",
        "see what else uses the GPU; if it comes again, restart the machine",
        retry=True,
        wall_with_evidence=True,
    ),
    _crash(
        "gpu_interactivity",
        r"kIOGPUCommandBufferCallbackErrorImpactingInteractivity|Impacting Interactivity",
        "gpu_timeout",
        "The window server claimed the GPU from a long command buffer.",
        "let the display sleep, or a smaller prefill_step_size; "
        "AGX_RELAX_CDM_CTXSTORE_TIMEOUT=1 under env: helped in one report",
        retry=False,
        wall_with_evidence=True,
    ),
    _crash(
        "gpu_page_fault",
        r"kIOGPUCommandBufferCallbackErrorPageFault|GPU Address Fault",
        "gpu_page_fault",
        "A GPU kernel touched memory that is not there.",
        "a defect in MLX or the model's kernels: report it with the worker's log",
        retry=False,
    ),
    _crash(
        "gpu_victim",
        r"InnocentVictim|Discarded \(victim of GPU error/recovery\)"
        r"|kIOGPUCommandBufferCallbackErrorInvalidResource|Invalid Resource \(0*9\s*:",
        "gpu_victim",
        "The GPU dropped this work because of another failure, maybe another program's.",
        "see what else uses the GPU",
        retry=True,
    ),
    _crash(
        "metal_other",
        r"\[METAL\] Command buffer execution failed",
        "metal_error",
        "A Metal command buffer failed.",
        "see the worker's log for Metal's own words",
        retry=True,
        wall_with_evidence=True,
    ),
    _crash(
        "fork_objc",
        r"may have been in progress in another thread when fork\(\) was called",
        "fork_after_metal",
        "A process was forked after Objective-C had started.",
        "a defect: workers must be spawned; report it",
        retry=False,
    ),
    # -- the machine cannot do it
    _host(
        "no_metal",
        r"No Metal device available|There is no available Metal device on this system"
        r"|MTLCreateSystemDefaultDevice[^\n]*nil",
        "no_gpu",
        "There is no Metal GPU in this session.",
        "run where the GPU can be reached: not headless, sandboxed or in a virtual machine",
    ),
    _host(
        "disk_full",
        r"No space left on device|\[Errno 28\]",
        "disk_full",
        "The disk is full; swap files grow on the same disk.",
        "free some space, then `wallfinder resume RUN --retry failed`",
    ),
    # -- the model cannot be loaded
    _fail(
        "hf_gated",
        r"GatedRepoError|Cannot access gated repo|403 Client Error|you are not in the authorized list",
        "model_gated",
        "The model is gated, and this account has no access to it.",
        "ask for access on the model's page and log in with `hf auth login`",
        stops_variant=True,
    ),
    _fail(
        "hf_not_found",
        r"RepositoryNotFoundError|Repository Not Found for url|401 Client Error|RevisionNotFoundError",
        "model_not_found",
        "The hub does not know the model, or does not show it without a login.",
        "mend `model` in the plan, or log in with `hf auth login` where the model is private",
        stops_variant=True,
    ),
    _fail(
        "hf_offline",
        r"LocalEntryNotFoundError|IncompleteSnapshotError|OfflineModeIsEnabled|offline mode is enabled"
        r"|cached snapshot folder for the specified revision|outgoing traffic has been disabled",
        "model_not_downloaded",
        "The model is not complete on this machine, and workers do not download.",
        "run again with a network, so that the model is downloaded before the first cell",
        stops_variant=True,
    ),
    _fail(
        "remote_code",
        r"requires importing and running a\s+custom module"
        r"|(?:pass(?:ing)? the argument|set the option|Pass)\s+`?trust_remote_code=True",
        "remote_code",
        "The model or its tokenizer wants to run code of its own.",
        "read that code; if you trust it, allow remote code for this model in the plan",
        stops_variant=True,
    ),
    _fail(
        "model_type",
        r"Model type (?P<name>\S+) not supported|KeyError: 'model_type'|\A'model_type'\Z",
        "unsupported_model",
        "This mlx-lm does not know the architecture {name}.",
        "a newer mlx-lm, or another model",
        stops_variant=True,
    ),
    _fail(
        "bad_config",
        r"__init__\(\) missing (?P<n>\d+) required positional argument",
        "bad_config",
        "The model's config.json lacks {n} of the values that its architecture needs.",
        "complete config.json, or the synthetic model's values in the plan",
        stops_variant=True,
    ),
    _fail(
        "missing_params",
        r"Missing (?P<n>\d+) parameters|Received \d+ parameters not in model",
        "bad_weights",
        "The weights do not fit the architecture as this mlx-lm builds it.",
        "the versions of mlx-lm and of the converted model do not match: update mlx-lm or convert again",
        stops_variant=True,
    ),
    _fail(
        "no_weights",
        r"No safetensors found in",
        "model_not_found",
        "The model's folder holds no weights.",
        "mend `model` in the plan: an MLX folder holds config.json and *.safetensors",
        stops_variant=True,
    ),
    _fail(
        "damaged_weights",
        r"\[load_safetensors\]|\[read\] Unable to read|incomplete download or corrupt"
        r"|SafetensorError|Error while deserializing header|HeaderTooLarge|MetadataIncompleteBuffer",
        "bad_weights",
        "The model's weights are damaged or incomplete.",
        "delete the model's folder or its entry in the hub's cache, and download it again",
        stops_variant=True,
    ),
    _fail(
        "no_config",
        r"No such file or directory: '?[^'\n]*config\.json",
        "model_not_found",
        "The model's folder has no config.json.",
        "mend `model` in the plan: an MLX folder holds config.json and *.safetensors",
        stops_variant=True,
    ),
    # -- the model cannot do what was asked
    _fail(
        "cache_unbatchable",
        r"does not yet support batching(?: with history)?|RotatingKVCache with keep tokens is not supported"
        r"|Cache' object has no attribute '(?:merge|filter|extend)'",
        "not_batchable",
        "This mlx-lm cannot batch the model's kind of cache.",
        "engine: lockstep, or another model",
        stops_variant=True,
    ),
    _fail(
        "kvq_unsupported",
        r"Quantization NYI|Quantized SDPA does not support attention sinks",
        "kv_bits_unsupported",
        "The model's kind of cache cannot be quantized.",
        "leave kv_bits out for this model",
        stops_variant=True,
    ),
    _fail(
        "wired_limit",
        r"Setting a wired limit larger than",
        "wired_limit",
        "The wired limit that was asked for is over what macOS allows.",
        "wired_limit: off, or a larger iogpu.wired_limit_mb",
        stops_variant=True,
    ),
    _fail(
        "shape_bug",
        r"\[broadcast_shapes\]|Cannot broadcast array of shape|\[matmul\] Last dimension"
        r"|too many values to unpack",
        "shape_error",
        "The model's code and its inputs disagree about a shape.",
        "a defect in the model's code, or a config that does not fit its weights: report it with the log",
        stops_variant=False,
    ),
    _fail(
        "module_missing",
        r"ModuleNotFoundError|No module named '?(?P<name>[\w.]+)|ImportError: ",
        "module_missing",
        "The worker's Python lacks a module ({name}).",
        "install it into the environment that wallfinder runs from (on Linux: mlx[cpu])",
        stops_variant=True,
    ),
)


def recognise(text: str, *, native_only: bool = False) -> Recognised | None:
    """The first row of the table whose pattern is in the text, or None.

    `native_only` leaves out the rows that stand for an error raised by Python.
    """
    for row in TEXTS:
        if native_only and not row.native:
            continue
        found = row.pattern.search(text)
        if found:
            return Recognised(row, _line_around(text, found), _sentence(row, found))
    return None


def _line_around(text: str, found: re.Match[str]) -> str:
    start = text.rfind("\n", 0, found.start()) + 1
    end = text.find("\n", found.end())
    return shortened(printable(text[start : end if end >= 0 else len(text)]), _LINE_CHARACTERS)


def _sentence(row: FailureText, found: re.Match[str]) -> str:
    groups = found.groupdict()
    quoted = {name: _quoted(row, groups.get(name)) for name in ("n", "m")}
    name = groups.get("name")
    return row.sentence.format(**quoted, name=shortened(printable(name), 80) if name else "it names")


def _quoted(row: FailureText, digits: str | None) -> str:
    if digits is None or len(digits) > 30:  # not a count that a machine could have meant
        return "an unknown amount" if row.bytes_quoted else "some"
    count = int(digits)
    if not row.bytes_quoted:
        return f"{count:,}"
    return f"{count:,} bytes ({amount(count)})" if count >= 1000 else f"{count} bytes"
