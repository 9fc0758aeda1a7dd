"""The recogniser table: every row with its older and newer forms, as message, as traceback and in the log."""

from __future__ import annotations

import dataclasses
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.failure_texts import TEXTS, recognise
from orchestrator.records import Verdict
from orchestrator.verdict import AttemptFacts, judge
from orchestrator.watchdog.wire import Released
from worker.protocol import Failure

METAL = "[METAL] Command buffer execution failed:"
ABI = "libc++abi: terminating due to uncaught exception of type std::runtime_error:"
WALL, CRASHED, FAILED = Verdict.HIT_THE_WALL, Verdict.CRASHED, Verdict.FAILED

# (row, a text as seen in public or in the sources)
FORMS: list[tuple[str, str]] = [
    (
        "metal_oom",
        f"{ABI} {METAL} Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
    ),
    (
        "metal_oom",
        f"RuntimeError: {METAL} Insufficient Memory (00000008: kIOGPUCommandBufferCallbackErrorOutOfMemory).",
    ),
    ("metal_oom", f"{METAL} insufficient memory (8:whatever)"),
    ("metal_oom", f"{ABI}\n{METAL} Insufficient Memory\n(00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)"),
    ("metal_oom", f"{METAL} Insufficient Memory (kIOGPUCommandBufferCallbackErrorOutOfMemory)."),
    ("metal_oom", f"RuntimeError: {METAL} Insufficient Memory"),
    ("metal_oom", f"{METAL} Nicht genug Speicher (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)"),
    (
        "metal_buffer_too_big",
        (
            "RuntimeError: [metal::malloc] Attempting to allocate 48736917632 bytes which is "
            "greater than the maximum "
            "allowed buffer size of 30150672384 bytes."
        ),
    ),
    (
        "metal_buffer_too_big",
        (
            f"{ABI} Attempting to allocate 96905199616 bytes which is greater than\n the maximum "
            f"allowed buffer size of "
            "17179869184 bytes"
        ),
    ),
    ("metal_alloc_fail", "[malloc_or_wait] Unable to allocate 9663676416 bytes."),
    ("metal_alloc_fail", "RuntimeError: [malloc] Unable to allocate 1024 bytes"),
    ("metal_alloc_fail", "[metal::malloc] Unable to allocate 1024 bytes."),
    ("metal_alloc_fail", "[malloc_or_wait] Unable to allocate"),
    ("cuda_oom", "RuntimeError: cudaMallocAsync(&data, size, stream) failed: out of memory"),
    (
        "host_alloc_fail",
        "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc",
    ),
    ("host_alloc_fail", "Traceback\nMemoryError"),
    ("host_alloc_fail", "OSError: [Errno 12] Cannot allocate memory"),
    ("metal_resource_limit", "RuntimeError: [metal::malloc] Resource limit (499000) exceeded."),
    ("metal_resource_limit", f"{ABI} [metal::malloc] Resource limit (499000) exceeded"),
    ("gpu_timeout", f"{METAL} Caused GPU Timeout Error (00000002:kIOGPUCommandBufferCallbackErrorTimeout)"),
    ("gpu_timeout", f"{METAL} Caused GPU Timeout Error (00000002: kIOGPUCommandBufferCallbackErrorTimeout)."),
    ("gpu_timeout", f"{ABI} {METAL} Caused GPU Timeout Error (00000002:kIOGPUCommandBufferCallbackErrorTimeout)"),
    ("gpu_timeout", f"{METAL} caused gpu timeout error (2:x)"),
    ("gpu_hang", f"{METAL} Caused GPU Hang Error (00000003:kIOGPUCommandBufferCallbackErrorHang)"),
    ("gpu_hang", f"RuntimeError: {METAL} Caused GPU Hang Error (00000003: kIOGPUCommandBufferCallbackErrorHang)."),
    (
        "gpu_interactivity",
        f"{ABI} {METAL} Impacting Interactivity (0000000e:kIOGPUCommandBufferCallbackErrorImpactingInteractivity)",
    ),
    (
        "gpu_page_fault",
        f"{METAL} Caused GPU Address Fault Error (0000000b: kIOGPUCommandBufferCallbackErrorPageFault).",
    ),
    (
        "gpu_victim",
        f"{METAL} Discarded (victim of GPU error/recovery) (5: kIOGPUCommandBufferCallbackErrorInnocentVictim).",
    ),
    ("gpu_victim", f"{METAL} Invalid Resource (00000009: kIOGPUCommandBufferCallbackErrorInvalidResource)."),
    ("metal_other", f"RuntimeError: {METAL} Ignored (for causing prior/excessive GPU errors) (00000004:x)."),
    (
        "gpu_interactivity",
        f"{METAL} Impacting Interactivity (0000000e:kIOGPUCommandBufferCallbackErrorImpactingInteractivity).",
    ),
    (
        "gpu_page_fault",
        f"{METAL} Caused GPU Address Fault Error (0000000b:kIOGPUCommandBufferCallbackErrorPageFault)",
    ),
    (
        "gpu_victim",
        (f"{METAL} Discarded (victim of GPU error/recovery) (00000005:kIOGPUCommandBufferCallbackErrorInnocentVictim)"),
    ),
    ("gpu_victim", f"{METAL} Invalid Resource (00000009:kIOGPUCommandBufferCallbackErrorInvalidResource)"),
    ("metal_other", f"{METAL} Something new (000000ff:kSomethingNew)"),
    (
        "fork_objc",
        (
            "objc[71]: +[__NSCFConstantString initialize] may have been in progress in another thread "
            "when fork() was called."
        ),
    ),
    (
        "no_metal",
        "[metal::load_device] No Metal device available. This typically occurs in headless sessions",
    ),
    ("no_metal", "RuntimeError: There is no available Metal device on this system."),
    ("no_metal", "libc++abi: terminating: [metal::load_device] No Metal device available."),
    ("disk_full", "OSError: [Errno 28] No space left on device: '/x'"),
    ("disk_full", "write error: No space left on device"),
    ("hf_gated", "GatedRepoError: 401 Client Error. Cannot access gated repo for url https://x."),
    (
        "hf_gated",
        "403 Client Error. Access to model a/b is restricted and you are not in the authorized list.",
    ),
    ("hf_not_found", "RepositoryNotFoundError: 401 Client Error. Repository Not Found for url: https://x."),
    ("hf_offline", "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find the requested files"),
    ("hf_offline", "Cannot reach https://x: offline mode is enabled."),
    (
        "remote_code",
        (
            "ValueError: The model at /m requires importing and running a custom module ('x.py') to "
            "build its architecture. "
            "This is disabled by default. Pass trust_remote_code=True if you trust this model."
        ),
    ),
    ("remote_code", "Please pass the argument `trust_remote_code=True` to allow custom code to be run."),
    ("model_type", "ValueError: Model type glm4_moe not supported."),
    ("model_type", "KeyError: 'model_type'"),
    (
        "model_type",
        (
            "ModuleNotFoundError: No module named 'mlx_lm.models.foo'\n\nThe above exception was "
            "the direct cause of the "
            "following exception:\n\nValueError: Model type foo not supported."
        ),
    ),
    ("bad_config", "TypeError: ModelArgs.__init__() missing 6 required positional arguments: 'hidden_size'"),
    ("bad_config", "TypeError: ModelArgs.__init__() missing 1 required positional argument: 'hidden_size'"),
    ("missing_params", "ValueError: Missing 627 parameters: \nself_attn.indexer.a"),
    ("missing_params", "ValueError: Received 1 parameters not in model: \na."),
    ("no_weights", "FileNotFoundError: No safetensors found in /m"),
    (
        "damaged_weights",
        "RuntimeError: [load_safetensors] Invalid json header length file /m/model.safetensors",
    ),
    ("damaged_weights", "RuntimeError: [read] Unable to read 8 bytes from file."),
    ("damaged_weights", "safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge"),
    ("no_config", "FileNotFoundError: [Errno 2] No such file or directory: '/m/config.json'"),
    ("cache_unbatchable", "ValueError: <class 'x.Cache'> does not yet support batching with history"),
    ("cache_unbatchable", "ValueError: <class 'x.Cache'> does not yet support batching"),
    ("cache_unbatchable", "RotatingKVCache with keep tokens is not supported."),
    ("cache_unbatchable", "AttributeError: 'ArraysCache' object has no attribute 'merge'"),
    ("kvq_unsupported", "NotImplementedError: BatchRotatingKVCache Quantization NYI"),
    ("kvq_unsupported", "ValueError: Quantized SDPA does not support attention sinks."),
    (
        "wired_limit",
        (
            "ValueError: [metal::set_wired_limit] Setting a wired limit larger than the maximum "
            "working set size is not "
            "allowed."
        ),
    ),
    ("wired_limit", "ValueError: Setting a wired limit larger than the maximum working set size is not allowed"),
    ("shape_bug", "ValueError: [broadcast_shapes] Shapes (3,4) and (5,2) cannot be broadcast."),
    ("shape_bug", "Cannot broadcast array of shape (1)"),
    ("shape_bug", "ValueError: too many values to unpack (expected 4)"),
    ("module_missing", "ModuleNotFoundError: No module named 'mlx'"),
]
BY_NAME = {row.name: row for row in TEXTS}
IDS = [f"{name}-{i}" for i, (name, _) in enumerate(FORMS)]


# row -> verdict, cause, and what follows from it: a = again, d = speaks for larger cells, v = stops the variant,
# s = stops the sweep. Written out here a second time, so that a slip in the table of rows does not pass.
ROWS: dict[str, tuple[Verdict, str, str]] = {
    "metal_oom": (WALL, "metal_oom", "d"),
    "metal_buffer_too_big": (WALL, "metal_oom", "d"),
    "metal_alloc_fail": (WALL, "metal_oom", "d"),
    "cuda_oom": (WALL, "cuda_oom", "d"),
    "host_alloc_fail": (WALL, "alloc_failed", "d"),
    "metal_resource_limit": (CRASHED, "metal_resource_limit", "a"),
    "gpu_timeout": (CRASHED, "gpu_timeout", "a"),
    "gpu_hang": (CRASHED, "gpu_hang", "a"),
    "gpu_interactivity": (CRASHED, "gpu_timeout", ""),
    "gpu_page_fault": (CRASHED, "gpu_page_fault", ""),
    "gpu_victim": (CRASHED, "gpu_victim", "a"),
    "metal_other": (CRASHED, "metal_error", "a"),
    "fork_objc": (CRASHED, "fork_after_metal", ""),
    "no_metal": (FAILED, "no_gpu", "s"),
    "disk_full": (FAILED, "disk_full", "s"),
    "hf_gated": (FAILED, "model_gated", "v"),
    "hf_not_found": (FAILED, "model_not_found", "v"),
    "hf_offline": (FAILED, "model_not_downloaded", "v"),
    "remote_code": (FAILED, "remote_code", "v"),
    "model_type": (FAILED, "unsupported_model", "v"),
    "bad_config": (FAILED, "bad_config", "v"),
    "missing_params": (FAILED, "bad_weights", "v"),
    "no_weights": (FAILED, "model_not_found", "v"),
    "damaged_weights": (FAILED, "bad_weights", "v"),
    "no_config": (FAILED, "model_not_found", "v"),
    "cache_unbatchable": (FAILED, "not_batchable", "v"),
    "kvq_unsupported": (FAILED, "kv_bits_unsupported", "v"),
    "wired_limit": (FAILED, "wired_limit", "v"),
    "shape_bug": (FAILED, "shape_error", ""),
    "module_missing": (FAILED, "module_missing", "v"),
}
# How an ABRT that a text goes before is seen: by the parent, through a shell, by a wrapper, and where Python raised it
# or the process went on after it.
STATUSES = {"signal": -6, "shell": 134, "wrapper": 6, "raised": 1, "went on": 0, "killed by us or another": -9}


def facts_of(text: str, how: str, **changes: object) -> AttemptFacts:
    """The text as a message, as a traceback under a message without words, or in the log alone."""
    plain = AttemptFacts(platform="darwin", exit_status=1, reps_expected=3, phase="decode", rep=0, step=3)
    failure = Failure(kind="error", text="", remedy="", phase="decode")
    how_it_came = {
        "text": {"final": dataclasses.replace(failure, text=text)},
        "traceback": {"final": dataclasses.replace(failure, text="it broke", traceback=text)},
        "log": {"log_tail": f"loading\n{text}\nUserWarning: resource_tracker: leaked semaphore\n"},
        "abort": {"log_tail": text, "exit_status": -int(signal.SIGABRT)},
    }[how]
    return dataclasses.replace(plain, **{**how_it_came, **changes})  # type: ignore[arg-type]  # a test's short cut


def test_every_row_is_shown_by_a_text() -> None:
    assert {name for name, _ in FORMS} == set(BY_NAME) == set(ROWS)
    assert len(BY_NAME) == len(TEXTS)


@pytest.mark.parametrize("how", ["text", "traceback", "log"])
@pytest.mark.parametrize(("name", "text"), FORMS, ids=IDS)
def test_a_text_decides_however_it_arrives(name: str, text: str, how: str) -> None:
    verdict, cause, follows = ROWS[name]
    judgement = judge(facts_of(text, how))
    assert (judgement.verdict, judgement.cause) == (verdict, cause)
    assert judgement.retryable == ("a" in follows)
    assert judgement.memory_wall == ("d" in follows)
    assert judgement.stops_variant == ("v" in follows)
    assert judgement.stops_sweep == ("s" in follows)
    assert judgement.remedy == BY_NAME[name].remedy
    assert judgement.detail.isprintable()
    assert "{" not in judgement.detail
    assert str(judgement.evidence["text"]).isprintable()


@pytest.mark.parametrize("status", STATUSES.values(), ids=STATUSES.keys())
@pytest.mark.parametrize("name", [row.name for row in TEXTS if row.native])
def test_native_texts_decide_whatever_the_exit_status_is(name: str, status: int) -> None:
    text = next(text for row, text in FORMS if row == name)
    verdict, cause, _ = ROWS[name]
    judgement = judge(facts_of(text, "log", exit_status=status))
    assert (judgement.verdict, judgement.cause) == (verdict, cause)


@pytest.mark.parametrize("name", [row.name for row in TEXTS if row.native])
def test_a_process_that_stays_alive_after_a_native_text_is_judged_by_the_text(name: str) -> None:
    """Metal's error, then minutes without progress: the watchdog ends it as stalled."""
    text = next(text for row, text in FORMS if row == name)
    verdict, cause, _ = ROWS[name]
    stalled = Released(1, "stalled", {}, [], False, None, 0, 0, 0, 0.0, 0, 0.0, 9, 0.0, {})
    judgement = judge(facts_of(text, "log", exit_status=-9, released=stalled))
    assert (judgement.verdict, judgement.cause) == (verdict, cause)
    assert judgement.evidence["ended_by_us"] == "stalled"


@pytest.mark.parametrize(("name", "text"), [f for f in FORMS if BY_NAME[f[0]].native], ids=str)
def test_native_texts_decide_over_the_signal(name: str, text: str) -> None:
    judgement = judge(facts_of(text, "abort"))
    assert (judgement.verdict, judgement.cause) == (BY_NAME[name].verdict, BY_NAME[name].cause)
    assert judgement.signal == "SIGABRT"


@pytest.mark.parametrize(("name", "text"), [f for f in FORMS if not BY_NAME[f[0]].native], ids=str)
def test_python_texts_do_not_explain_a_signal(name: str, text: str) -> None:
    judgement = judge(facts_of(text, "abort"))
    assert (judgement.verdict, judgement.cause) == (Verdict.CRASHED, "sigabrt")


@pytest.mark.parametrize("name", [row.name for row in TEXTS if row.wall_with_evidence])
def test_gpu_errors_with_memory_evidence_are_walls(name: str) -> None:
    text = next(text for row, text in FORMS if row == name)
    swapped = Released(1, None, {}, [], False, None, 5, 5, 5, 0.0, 0, 0.0, 9, 0.0, {"swap_growth": 3e9})
    assert judge(facts_of(text, "abort")).verdict is Verdict.CRASHED
    judgement = judge(facts_of(text, "abort", released=swapped))
    assert judgement.verdict is Verdict.HIT_THE_WALL
    assert judgement.memory_wall
    assert not judgement.retryable


def test_numbers_are_quoted() -> None:
    big = next(text for name, text in FORMS if name == "metal_buffer_too_big")
    detail = judge(facts_of(big, "log")).detail
    assert "48,736,917,632 bytes (48.7 GB)" in detail
    assert "30,150,672,384 bytes (30.2 GB)" in detail
    assert "499,000 buffers" in judge(facts_of("[metal::malloc] Resource limit (499000) exceeded", "log")).detail
    assert "glm4_moe" in judge(facts_of("Model type glm4_moe not supported.", "text")).detail


def test_the_order_of_the_table_decides() -> None:
    both = f"{METAL} Caused GPU Timeout Error (00000002:x)\n{METAL} Insufficient Memory (00000008:x)"
    found = recognise(both)
    assert found is not None
    assert found.row.name == "metal_oom"


def test_an_abort_without_a_text_is_a_crash_that_says_where_its_reason_may_stand() -> None:
    for status, cause in ((-6, "sigabrt"), (134, "sigabrt"), (6, "exit_status")):
        judgement = judge(facts_of("loading\nAbort trap: 6", "log", exit_status=status))
        assert (judgement.verdict, judgement.cause, judgement.retryable) == (CRASHED, cause, True)
        assert "Abort trap: 6" in judgement.detail
    assert "DiagnosticReports" in judge(facts_of("", "abort")).remedy


def test_the_first_part_of_the_log_does_not_hide_its_end() -> None:
    flood = "x" * 5_000_000
    assert judge(facts_of(f"{flood}\n{FORMS[0][1]}", "abort")).cause == "metal_oom"


def test_a_hostile_text_is_harmless() -> None:
    judgement = judge(facts_of("Model type \x1b[2J[red]\u202e{n} not supported.", "text"))
    assert judgement.cause == "unsupported_model"
    assert judgement.detail.isprintable()
    assert "\\x1b[2J[red]\\u202e{n}" in judgement.detail
    huge = judge(facts_of(f"[malloc] Unable to allocate {'9' * 5000} bytes", "text"))
    assert huge.cause == "metal_oom"
    assert len(huge.detail) < 500


@given(st.text())
def test_any_text_is_looked_up_without_an_error(text: str) -> None:
    found = recognise(text)
    assert found is None or found.line.isprintable()


def test_the_page_for_people_tells_of_every_row() -> None:
    page = (Path(__file__).parents[1] / "docs" / "failures.md").read_text(encoding="utf-8")
    for row in TEXTS:
        assert f"`{row.verdict}: {row.cause}`" in page, row.name
        line = next(line for line in page.splitlines() if f"`{row.verdict}: {row.cause}`" in line)
        assert ("stops the variant" in line) == row.stops_variant
        assert ("stops the sweep" in line) == row.stops_sweep
