"""What `model:` may be: hub ids, folders, and synthetic architectures."""

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.plan import Place, PlanError, Synthetic, load_plan, parse_plan, plan_to_yaml

REST = "batches: [1]\ncontexts: [64]\n"
QWEN = {"model_type": "qwen3", "hidden_size": 64, "rms_norm_eps": 1e-06, "torch_dtype": "float16"}


def model(text: str, folder: Path, *, frozen: bool = False) -> str | Synthetic:
    return parse_plan(f"{REST}model: {text}\n", "p.yaml", Place(folder, frozen)).model


def synthetic(text: str, folder: Path) -> Synthetic:
    made = model(f"{{synthetic: {text}}}", folder)
    assert isinstance(made, Synthetic)
    return made


def problems(text: str, folder: Path) -> list[str]:
    with pytest.raises(PlanError) as raised:
        model(text, folder)
    return raised.value.problems


def write_config(folder: Path, **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**QWEN, **changes}))
    return folder


@pytest.mark.parametrize("name", ["org/model", "mlx-community/Qwen3-8B-4bit", "a/b.c_d", "_x/y1"])
def test_hub_ids(tmp_path: Path, name: str) -> None:
    plan = parse_plan(f"{REST}model: {name}\n", "p.yaml", Place(tmp_path))
    assert plan.model == name
    assert (plan.model_ref.kind, plan.model_ref.name) == ("hub", name)


@pytest.mark.parametrize(
    "text", ["word", "a/b/c", "a--b/c", "a..b/c", "-a/b", "a/b-", "a/" + "b" * 96, "ü/b", "https://x.y/z"]
)
def test_what_is_neither_a_folder_nor_a_hub_id(tmp_path: Path, text: str) -> None:
    (found,) = problems(text, tmp_path)
    assert found.startswith("p.yaml:3: model: ")
    assert "neither a folder that exists nor a hub id; write a hub id such as" in found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("./none", "does not exist; give a folder"),
        ("/none/at/all", "does not exist; give a folder"),
        ("~nobody-of-that-name/x", "cannot be looked up"),
        ("./file", "is a file; a model is a folder"),
        ("file", "is a file; a model is a folder"),
        ("./empty", "has no config.json"),
        ("[a/b]", "a list stands where a model belongs"),
        ("null", "no value stands where a model belongs"),
        ("12", "12 stands where a model belongs"),
        ("{hub: a/b}", "the one key `synthetic`"),
        ('"a\\0b"', "NUL"),
        ("x" * 5000, "cannot be looked up"),
    ],
)
def test_models_that_cannot_be_used(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    assert words in problems(text, tmp_path)[0]


def test_folders_are_looked_for_beside_the_plan_then_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, beside = tmp_path / "here", tmp_path / "beside"
    write_config(here / "m")
    write_config(here / "both")
    write_config(beside / "both")
    monkeypatch.chdir(here)
    assert model("./m", beside) == str(here / "m")
    assert model("m", beside) == str(here / "m")
    assert model("both", beside) == str(beside / "both")
    assert model("../here/m", beside) == str(here / "m")
    monkeypatch.setenv("HOME", str(here))
    assert model("~/m", beside) == str(here / "m")


def test_a_folder_named_like_a_hub_id_is_a_folder(tmp_path: Path) -> None:
    write_config(tmp_path / "org" / "model")
    plan = parse_plan(f"{REST}model: org/model\n", "p.yaml", Place(tmp_path))
    assert (plan.model_ref.kind, plan.model) == ("folder", str(tmp_path / "org" / "model"))
    assert model("org/model", tmp_path, frozen=True) == "org/model"


def test_a_frozen_plan_needs_no_folder(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(f"{REST}model: /gone/for/good\n")
    assert load_plan(path, frozen=True).model_ref.kind == "folder"
    with pytest.raises(PlanError, match="does not exist"):
        load_plan(path)


def test_a_synthetic_config_written_out(tmp_path: Path) -> None:
    made = synthetic(
        "{model_type: llama, rms_norm_eps: 1e-5, rope_theta: 10000.0, tie_word_embeddings: false,"
        " sliding_window: null, layers: [a, 'b', 1.5], limit: .inf, 'on': 1, rope_scaling: {factor: 8}}",
        tmp_path,
    )
    assert (made.dtype, made.quantization_bits, made.quantization_group_size) == ("bfloat16", None, None)
    assert made.config == {
        "model_type": "llama", "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
        "sliding_window": None, "layers": ["a", "b", 1.5], "limit": float("inf"), "on": 1,
        "rope_scaling": {"factor": 8},
    }  # fmt: skip
    assert isinstance(made.config["rope_theta"], float)


def test_a_synthetic_config_from_a_file_with_changes(tmp_path: Path) -> None:
    write_config(tmp_path / "q", vocab_size=100)
    whole = synthetic("./q/config.json", tmp_path)
    assert whole == synthetic("./q", tmp_path) == synthetic("{config: q}", tmp_path)
    assert (whole.dtype, whole.config["vocab_size"]) == ("float16", 100)
    assert "torch_dtype" not in whole.config
    changed = synthetic("{config: q, vocab_size: 7, dtype: float32, quantization: {bits: 8}}", tmp_path)
    assert (changed.config["vocab_size"], changed.dtype) == (7, "float32")
    assert (changed.quantization_bits, changed.quantization_group_size) == (8, 64)


def test_the_quantization_of_a_base_config(tmp_path: Path) -> None:
    write_config(tmp_path / "q", quantization={"bits": 4, "group_size": 32}, quantization_config={"bits": 4})
    write_config(tmp_path / "hf", quantization_config={"quant_method": "fp8", "bits": 8})
    write_config(tmp_path / "mixed", quantization={"bits": 4, "group_size": 32, "lm_head": {"bits": 8}})
    made = synthetic("./q", tmp_path)
    assert (made.quantization_bits, made.quantization_group_size) == (4, 32)
    assert "quantization" not in made.config
    assert "quantization_config" not in made.config
    assert synthetic("{config: q, quantization: null}", tmp_path).quantization_bits is None
    assert synthetic("./hf", tmp_path).quantization_bits is None
    assert "differ in quantization" in problems("{synthetic: ./mixed}", tmp_path)[0]
    assert synthetic("{config: mixed, quantization: {bits: 4}}", tmp_path).quantization_bits == 4


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ("{}", "", "a mapping stands where a config belongs"),
        ("[a]", "", "a list stands where a config belongs"),
        ("null", "", "no value stands where a config belongs"),
        ("{hidden_size: 4}", "", "model_type is missing"),
        ("{model_type: llama, dtype: int8}", ".dtype", "float32, float16 or bfloat16"),
        ("{model_type: llama, dtype: float16, torch_dtype: float16}", ".torch_dtype", "the same as dtype"),
        ("{model_type: llama, quantization: 4}", ".quantization", "write {bits: 4, group_size: 64}"),
        ("{model_type: llama, quantization: {bits: 7}}", ".quantization.bits", "2, 3, 4, 5, 6 or 8"),
        (
            "{model_type: llama, quantization: {bits: 4, group_size: 16}}",
            ".quantization.group_size",
            "32, 64 or 128",
        ),
        (
            "{model_type: llama, quantization: {bits: 4, mode: x}}",
            ".quantization.mode",
            "it has bits and group_size",
        ),
        ("{model_type: llama, quantization_config: {}}", ".quantization_config", "write `quantization:"),
        ("{model_type: llama, n: 1_000}", ".n", "write 1000"),
        ("{model_type: llama, n: 010}", ".n", "write 10"),
        ("{model_type: llama, n: 0x10}", ".n", "write 16"),
        ("{model_type: llama, n: 1:30}", ".n", "write the plain number"),
        ("{model_type: llama, n: yes}", ".n", "write true, false"),
        ("{model_type: llama, n: .nan}", ".n", "write a number"),
        ("{model_type: llama, n: -Infinity}", ".n", "write -.inf"),
        ("{model_type: llama, n: 1e999}", ".n", "too large"),
        ("{model_type: llama, n: 9223372036854775808}", ".n", "below 2**63"),
        ("{model_type: llama, n: [{m: off}]}", ".n[0].m", "write true, false"),
        ("{config: none.json}", ".config", "there is no such file; give the path of a config.json"),
        ("none.json", "", "there is no such file"),
        ("{config: text}", ".config", "is not JSON that can be used"),
        ("{config: deep}", ".config", "is not JSON that can be used"),
        ("{config: list}", ".config", "is not the config of a model"),
        ("{config: nan}", ".config", "holds NaN"),
        ("{config: empty_key}", ".config", "a key without a name"),
        ("{config: [a]}", ".config", "a list stands where the path of a config.json belongs"),
        ("{config: odd_dtype}", ".config", "a dtype in the plan goes before it"),
    ],
)
def test_synthetic_models_that_cannot_be_made(tmp_path: Path, text: str, key: str, words: str) -> None:
    files = {
        "text": "hello",
        "deep": "[" * 100_000,
        "list": "[1]",
        "nan": '{"a": NaN}',
        "empty_key": '{"": 1}',
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    write_config(tmp_path / "odd_dtype", torch_dtype="float8")
    found = problems(f"{{synthetic: {text}}}", tmp_path)
    assert found[0].startswith(f"p.yaml:3: model.synthetic{key}: "), found
    assert words in found[0], found


def test_all_slips_of_a_config_at_once(tmp_path: Path) -> None:
    found = problems("{synthetic: {model_type: llama, a: 010, b: yes, dtype: x, quantization: {bits: 1}}}", tmp_path)
    keys = {problem.split(": ")[1] for problem in found}
    assert keys == {f"model.synthetic.{key}" for key in ("a", "b", "dtype", "quantization.bits")}


def test_revisions_belong_to_hub_models(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="revision: only a hub model has revisions, and this one is a synthetic"):
        model("{synthetic: {model_type: llama}}\nrevision: main", tmp_path)


def test_a_resolved_plan_stands_alone(tmp_path: Path) -> None:
    folder = write_config(tmp_path / "here" / "q", strange={"off": "no", "n": "1_0", "x": [1e-05, -0.0, "a\nb\t"]})
    path = tmp_path / "here" / "p.yaml"
    path.write_text(
        f"{REST}model: {{synthetic: {{config: q, quantization: {{bits: 4}}}}}}\n"
        "variants: [{name: f, model: ./q}, {name: h, model: org/hub, revision: 1e5}]\n"
    )
    plan = load_plan(path)
    moved = tmp_path / "elsewhere" / "p.yaml"
    moved.parent.mkdir()
    moved.write_text(plan_to_yaml(plan))
    assert load_plan(moved) == plan
    (folder / "config.json").unlink()
    assert load_plan(moved, frozen=True) == plan
