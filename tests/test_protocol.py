"""What crosses the pipes survives the crossing, and nothing else is taken for it."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from worker_driver import make_spec

from worker import protocol
from worker.protocol import (
    Done,
    Failure,
    Hello,
    Message,
    ModelFacts,
    ModelSource,
    ProtocolError,
    RepResult,
    Stopped,
    decode,
    decode_spec,
    encode,
    encode_spec,
)

MESSAGES: list[Message] = [
    Hello(pid=1, protocol=1, device="gpu", versions={"mlx": "1"}, device_info={"memory_size": 2**40}),
    ModelFacts(
        model_type="llama",
        parameters=1,
        weight_bytes=2,
        vocab_size=3,
        load_s=0.1,
        load_peak_bytes=4,
        cache_classes=["KVCache"],
        cache_bytes_per_token=None,
        kv_bits=None,
        wired_limit="untouched",
        window_bytes_per_token={"16": 0.5},
    ),
    RepResult(
        rep=0,
        prefill_s=0.1,
        prompt_tokens=1,
        chunk_s=[0.1],
        step_s=[],
        rows_per_step=[],
        generated_tokens=1,
        finite_logits=True,
        constant_logits=False,
        prefill_peak_bytes=1,
        decode_peak_bytes=1,
        active_bytes=1,
        cache_bytes=0,
        kv_cache_bytes=1,
        started_s=1.0,
        ended_s=2.0,
    ),
    Done(reps=3),
    Stopped(phase="decode", rep=1, step=2),
    Failure(kind="error", text="ünïcode \n \x00", remedy="", phase="load", traceback="a\nb"),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.type)
def test_messages_survive(message: Message) -> None:
    line = encode(message)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert line.isascii()
    assert decode(line) == message


def test_every_message_has_a_name_of_its_own() -> None:
    assert len({message.type for message in MESSAGES}) == len(MESSAGES) == len(protocol._KINDS)


@given(st.text())
def test_any_text_is_one_line(text: str) -> None:
    failure = Failure(kind="error", text=text, remedy=text, phase="load", traceback=text)
    assert encode(failure).count(b"\n") == 1
    assert decode(encode(failure)) == failure


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"null",
        b"[]",
        b"7",
        b"{}",
        b'{"type":"rep"}',
        b'{"type":"nonesuch"}',
        b'{"type":["done"]}',
        b"\xff",
    ],
)
def test_other_lines_are_errors(line: bytes) -> None:
    with pytest.raises(ProtocolError, match="not a worker message"):
        decode(line)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.type)
def test_torn_lines_are_errors(message: Message) -> None:
    line = encode(message)
    for length in range(len(line) - 1):
        with pytest.raises(ProtocolError):
            decode(line[:length])


def test_specs_survive() -> None:
    source = ModelSource(path="/a b/ü", quantization_bits=4, trust_remote_code=True)
    spec = make_spec(model=source, kv_bits=8, fault="slow:3")
    assert decode_spec(encode_spec(spec)) == spec


@pytest.mark.parametrize("line", [b"", b"{}", b"[]", b"null", b'{"protocol":1}', b'{"protocol":1,"model":3}', b"\xff"])
def test_other_specs_are_errors(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_spec(line)


def test_a_spec_of_another_version_names_both() -> None:
    body = {**dataclasses.asdict(make_spec()), "protocol": 2}
    with pytest.raises(ProtocolError, match="protocol 1, the spec 2"):
        decode_spec(json.dumps(body).encode())
