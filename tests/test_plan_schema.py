"""What others read of the plan: the JSON Schema, the reference, the shipped plans, and the dry run."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from orchestrator.plan import Plan, PlanError, load_plan, plan_digest, plan_json_schema, plan_to_yaml
from orchestrator.plan.schema import plan_keys, schema_text, with_reference
from orchestrator.plan.view import plan_json, plan_text

ROOT = Path(__file__).parent.parent
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))


def valid(text: str) -> bool:
    return bool(jsonschema.Draft202012Validator(plan_json_schema()).is_valid(yaml.safe_load(text)))


@pytest.mark.parametrize("path", CONFIGS, ids=[path.name for path in CONFIGS])
def test_the_shipped_plans_load_and_fit_the_schema(path: Path) -> None:
    plan = load_plan(path)
    assert plan.cells()
    assert valid(path.read_text())
    assert valid(plan_to_yaml(plan))
    # the schema that editors are pointed to is there
    assert path.read_text().splitlines()[0] == "# yaml-language-server: $schema=plan.schema.json"


def test_every_shipped_plan_is_tested() -> None:
    assert {path.stem for path in CONFIGS} >= {"smoke", "origin", "overnight", "wall-linux"}


def test_the_schema_itself_is_valid_and_current() -> None:
    jsonschema.Draft202012Validator.check_schema(plan_json_schema())
    current = (ROOT / "configs" / "plan.schema.json").read_text()
    assert current == schema_text(), "run `python -m orchestrator.plan.schema`"


def test_the_reference_is_current() -> None:
    page = (ROOT / "docs" / "plan.md").read_text()
    assert with_reference(page) == page, "run `python -m orchestrator.plan.schema`"


def test_every_key_is_described() -> None:
    keys = plan_keys()
    assert [line.key for line in keys if not line.meaning] == []
    top = {line.key.split(".")[0].split("[")[0] for line in keys}
    assert top == set(Plan.model_fields)
    defaults = {line.key: line.default for line in keys}
    assert defaults["watchdog.swap_growth.soft"] == '"1%"'
    assert defaults["cell_time_limit"] == '"30m"'
    assert defaults["batches"] is None
    schema = plan_json_schema()
    inner = [entry for part in schema["$defs"].values() for entry in part["properties"].values()]
    assert all(entry.get("description") for entry in (*schema["properties"].values(), *inner))


def test_the_overnight_plan_names_every_key() -> None:
    def names(value: Any, prefix: str = "") -> set[str]:
        if not isinstance(value, dict) or prefix in ("admission.", "env.", "faults."):
            return set()
        below = [names(item, f"{key}.") for key, item in value.items()]
        return {f"{prefix}{key}" for key in value}.union(*below)

    plan = yaml.safe_load((ROOT / "configs" / "overnight.yaml").read_text())
    wanted = {".".join(line.key.split(".")[-2:]) for line in plan_keys() if "[]" not in line.key}
    assert wanted <= names(plan)


RIGHT = [
    "seed: 1",
    "cell_time_limit: 30m",
    "cell_time_limit: 1h30m",
    "worker_memory: 400MB",
    "worker_memory: null",
    "kv_bits: 4",
    "kv_bits: null",
    'deadline: "07:00"',
    "deadline: 8h",
    "watchdog: {swap_growth: {soft: 0.5%}}",
    "watchdog: {swap_growth: {soft: 400MB, hard: 1GB}}",
    "variants: [{name: a, kv_bits: 8, watchdog: {stall: {soft: 5s}}}]",
    "exclude: [{contexts: [64]}]",
    "env: {A: x, B: 1}",
    "refine: false",
    "fleet: null",
    "admission: {limit: 90%, action: run}",
]
WRONG = [
    "seed: x",
    "seed: -1",
    "cell_time_limit: 30",
    "worker_memory: 400M",
    "kv_bits: 5",
    "deadline: soon",
    "watchdog: {swap_growth: {soft: 0.5}}",
    "watchdog: {stal: {}}",
    "sed: 1",
    "variants: [{kv_bits: 8}]",
    "variants: [{name: a, batches: [1]}]",
    "exclude: []",
    "refine: true",
    "admission: {limit: 80%}",
]


@pytest.mark.parametrize(("line", "good"), [*((r, True) for r in RIGHT), *((w, False) for w in WRONG)])
def test_the_schema_judges_as_the_loader_does(tmp_path: Path, line: str, good: bool) -> None:
    text = f"model: a/b\nbatches: [1]\ncontexts: [64, 128]\n{line}\n"
    assert valid(text) is good
    path = tmp_path / "p.yaml"
    path.write_text(text)
    with nullcontext() if good else pytest.raises(PlanError):
        load_plan(path)


def test_the_smallest_plan_fits_the_schema_and_an_empty_one_does_not() -> None:
    assert valid("model: a/b\nbatches: [1]\ncontexts: [64]\n")
    assert valid("model: {synthetic: {model_type: llama, hidden_size: 64}}\nbatches: [1]\ncontexts: [64]\n")
    assert valid("model: {synthetic: ./config.json}\nbatches: [1]\ncontexts: [64]\n")
    assert not valid("{}")
    assert not valid("model: a/b\nbatches: [1, 1]\ncontexts: [64]\n")


def test_the_dry_run_as_text() -> None:
    plan = load_plan(ROOT / "configs" / "smoke.yaml")
    cells = tuple(reversed(plan.cells()))
    text = plan_text(plan, cells)
    assert text.endswith("\n")
    rows = [line.split() for line in text.splitlines() if " c00" in line]
    assert [row[1] for row in rows] == [cell.cell_id for cell in cells]
    # 1 warm-up and 3 repetitions of 4 rows: 128 prompt tokens and 16 generated ones each
    assert rows[0][2:] == ["4", "128", "2,048", "256"]
    assert "6 cells; a worker process for each" in text
    assert "synthetic llama (float32, random weights), engine batched" in text


def test_the_dry_run_as_json() -> None:
    plan = load_plan(ROOT / "configs" / "overnight.yaml")
    body = json.loads(json.dumps(plan_json(plan, plan.cells())))
    assert (body["schema"], body["digest"], len(body["cells"])) == (1, plan_digest(plan), 40)
    assert body["plan"]["deadline"] == "07:00"
    first = body["cells"][0]
    assert (first["cell_id"], first["model_kind"], first["variant"]) == ("kv16/c00512-b001", "hub", "kv16")
    assert (first["prompt_tokens"], first["generated_tokens"], first["cache_tokens"]) == (
        512 * 16,  # one warm-up, and 15 repetitions at most
        64 * 16,
        576,
    )


def test_a_random_fill_computes_no_prompt() -> None:
    plan = load_plan(ROOT / "configs" / "wall-linux.yaml")
    body = plan_json(plan, plan.cells())
    assert {cell["prompt_tokens"] for cell in body["cells"]} == {0}
    assert "each worker is bound to 0.4 GB" in plan_text(plan, plan.cells())
