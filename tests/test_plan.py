"""The plan file, key by key: what is read, and what each slip is answered with."""

from pathlib import Path

import pytest

from orchestrator.plan import (
    Place,
    Plan,
    PlanError,
    Share,
    parse_plan,
    plan_digest,
    plan_from_options,
    plan_to_yaml,
    rename_plan,
)
from orchestrator.schedule import fault_for
from worker.repeats import Repeats

GOOD = "model: org/model\nbatches: [1, 2]\ncontexts: [64, 128]\n"


def read(text: str, folder: Path = Path("/nowhere")) -> Plan:
    return parse_plan(text, "plan.yaml", Place(folder))


def problems(text: str) -> list[str]:
    with pytest.raises(PlanError) as raised:
        read(text)
    assert raised.value.exit_code == 2
    return raised.value.problems


def test_the_smallest_plan_has_the_documented_defaults() -> None:
    plan = read(GOOD)
    assert (plan.name, plan.model, plan.batches, plan.contexts) == ("plan", "org/model", (1, 2), (64, 128))
    assert (plan.gen_tokens, plan.reps, plan.warmup, plan.seed, plan.engine) == (64, 5, 1, 0, "batched")
    assert (plan.context_fill, plan.prefill_step_size, plan.prefill_logits) == ("prefill", 2048, "last")
    assert (plan.kv_bits, plan.kv_group_size, plan.wired_limit) == (None, 64, "default")
    assert (plan.order, plan.after_wall, plan.deadline) == ("safest_first", "skip_dominated", None)
    assert (plan.retries.crashed, plan.retries.failed, plan.cell_time_limit) == (1, 0, 1800.0)
    assert (plan.cooldown.min_s, plan.cooldown.max_s, plan.cooldown.on_timeout) == (0.0, 120.0, "stop")
    dog = plan.watchdog
    assert dog.sample_every_s == 0.1
    assert (dog.swap_growth.soft, dog.swap_growth.hard) == (Share(frac=0.01), Share(frac=0.08))
    assert (dog.step_inflation.soft, dog.step_inflation.hard, dog.step_inflation.sustained_s) == (
        2.5,
        6.0,
        5.0,
    )
    assert (dog.stall.soft_s, dog.stall.hard_s) == (20.0, 60.0)
    assert (dog.pressure.level, dog.pressure.sustained_s) == ("critical", 5.0)
    assert dog.footprint.limit == Share(frac=0.95)


def test_a_plan_is_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        read(GOOD).reps = 3  # type: ignore[misc]  # that it cannot be set is the point


# text of the plan, line of the problem, its key, words that the problem must hold
SLIPS = [
    # whole numbers
    ("batches: [1_000]", 2, "batches[0]", "1_000", "write 1000"),
    ("batches: [010]", 2, "batches[0]", "010", "write 10"),
    ("batches: [1e3]", 2, "batches[0]", "1e3", "write 1000"),
    ("batches: [1.0e+3]", 2, "batches[0]", "1.0e+3", "write 1000"),
    ("batches: [0x10]", 2, "batches[0]", "0x10", "write 16"),
    ("batches: [0o17]", 2, "batches[0]", "0o17", "write 15"),
    ("batches: [0b12]", 2, "batches[0]", "0b12", "plain whole number"),
    ("batches: [190:20:30]", 2, "batches[0]", "190:20:30", "plain whole number"),
    ("batches: [4.0]", 2, "batches[0]", "4.0", "write 4"),
    ("batches: [1.5]", 2, "batches[0]", "1.5", "plain whole number"),
    ("batches: [+4]", 2, "batches[0]", "+4", "write 4"),
    ('batches: ["4"]', 2, "batches[0]", '"4"', "write 4"),
    ("batches: [٤]", 2, "batches[0]", "plain whole number", ""),
    ("batches: [yes]", 2, "batches[0]", "yes", "whole number"),
    ("batches: [.inf]", 2, "batches[0]", ".inf", "whole number"),
    ("batches: [.nan]", 2, "batches[0]", ".nan", "whole number"),
    ("batches: [0]", 2, "batches[0]", "0 is out of range", "from 1 to 65536"),
    ("batches: [-1]", 2, "batches[0]", "-1 is out of range", "from 1 to 65536"),
    ("batches: [65537]", 2, "batches[0]", "out of range", "from 1 to 65536"),
    ("batches: [9223372036854775808]", 2, "batches[0]", "out of range", "from 1 to 65536"),
    ("batches: [" + "9" * 5000 + "]", 2, "batches[0]", "out of range", "from 1 to 65536"),
    ("batches: [null]", 2, "batches[0]", "no value", "write"),
    ("batches: [[1]]", 2, "batches[0]", "a list stands where one whole number belongs", "write"),
    ("batches: [{a: 1}]", 2, "batches[0]", "a mapping stands where one whole number belongs", "write"),
    ("contexts: [1]", 2, "contexts[0]", "1 is out of range", "from 2 to 16777216"),
    ("contexts: [16777217]", 2, "contexts[0]", "out of range", "from 2 to 16777216"),
    ("gen_tokens: 1", 2, "gen_tokens", "1 is out of range", "from 2"),
    ("gen_tokens: [64]", 2, "gen_tokens", "a list stands where one whole number belongs", ""),
    ("reps: 0", 2, "reps", "out of range", "from 1"),
    ("reps: 2.5", 2, "reps", "2.5 is not a plain whole number", ""),
    ("reps: true", 2, "reps", "true is not a plain whole number", ""),
    ("warmup: -1", 2, "warmup", "out of range", "from 0"),
    ("seed: 9223372036854775808", 2, "seed", "out of range", "from 0 to 4294967295"),
    ("seed:", 2, "seed", "no value", "leave the key out"),
    ("seed: ~", 2, "seed", "no value", "leave the key out"),
    # lists
    ("batches: []", 2, "batches", "the list is empty", "write"),
    ("contexts: []", 2, "contexts", "the list is empty", "write"),
    ("batches: [1, 2, 1]", 2, "batches[2]", "1 is in the list already", "leave it out"),
    ("batches: 4", 2, "batches", "4 stands where a list of batch sizes belongs", "write [4]"),
    ("contexts: {a: 1}", 2, "contexts", "a mapping stands where a list of context lengths belongs", "write"),
    ("variants: []", 2, "variants", "the list is empty", "leave the key out"),
    ("exclude: {contexts: [64]}", 2, "exclude", "a mapping stands where a list", "write"),
    # words
    ("engine: fast", 2, "engine", "fast is not possible here", "batched, lockstep or faulty"),
    ("engine: [batched]", 2, "engine", "a list is not possible here", "batched, lockstep or faulty"),
    ("kv_bits: 3", 2, "kv_bits", "3 is not possible here", "4, 8 or null"),
    ('kv_bits: "4"', 2, "kv_bits", '"4" is not possible here', "4, 8 or null"),
    ("kv_bits: 4.0", 2, "kv_bits", "4.0 is not possible here", "4, 8 or null"),
    ("kv_group_size: 65", 2, "kv_group_size", "65 is not possible", "32, 64 or 128"),
    ("wired_limit: no", 2, "wired_limit", "no is not possible", "default or off"),
    ("trust_remote_code: yes", 2, "trust_remote_code", "yes", "write true"),
    ("trust_remote_code: Off", 2, "trust_remote_code", "Off", "write false"),
    ("trust_remote_code: 1", 2, "trust_remote_code", "1 stands where true or false", "write true or false"),
    ('trust_remote_code: "true"', 2, "trust_remote_code", "true or false", "write"),
    ("name: 2024", 2, "name", "2024 stands where a name belongs", '"2024"'),
    ("name: no", 2, "name", "no stands where a name belongs", '"no"'),
    ("name: a/b", 2, "name", "a/b cannot name a folder", "write"),
    ("name: .hidden", 2, "name", ".hidden cannot name a folder", "write"),
    ("name: ..", 2, "name", ".. cannot name a folder", "write"),
    ('name: ""', 2, "name", "a name", "write"),
    ("name: " + "x" * 101, 2, "name", "cannot name a folder", "at most 100"),
    ('name: "a\\nb"', 2, "name", "cannot name a folder", "write"),
    ('name: "a\\0b"', 2, "name", "NUL", "leave it out"),
    ('name: "\\ud800"', 2, "name", "half a character", "leave it out"),
    ("revision: a b", 2, "revision", "is not a revision", "write"),
    # durations, sizes, shares
    ("cell_time_limit: 30", 2, "cell_time_limit", "30 has no unit", "write 30s, 30m"),
    ("cell_time_limit: 0s", 2, "cell_time_limit", "out of range", "write a duration"),
    ("cell_time_limit: 30 minutes", 2, "cell_time_limit", "is not a duration", "30m"),
    ("cell_time_limit: -5s", 2, "cell_time_limit", "is not a duration", "5s"),
    ("cell_time_limit: 30m1h", 2, "cell_time_limit", "is not a duration", "1h30m"),
    ("cell_time_limit: 400d", 2, "cell_time_limit", "out of range", "write"),
    ("cell_time_limit: null", 2, "cell_time_limit", "no value is not a duration", "write"),
    ("cell_time_limit: [1s]", 2, "cell_time_limit", "a list is not a duration", "write"),
    ("worker_memory: 400M", 2, "worker_memory", "400M is not a size", "400MB"),
    ("worker_memory: 400000000", 2, "worker_memory", "is not a size", "400MB"),
    ("worker_memory: 1MB", 2, "worker_memory", "out of range", "from 16MB"),
    ("worker_memory: 50%", 2, "worker_memory", "is not a size", "400MB"),
    ("deadline: soon", 2, "deadline", "soon is not a deadline", '"07:00"'),
    ("deadline: 25:00", 2, "deadline", "25:00 is not a deadline", '"07:00"'),
    ("deadline: 7", 2, "deadline", "7 is not a deadline", '"07:00"'),
    ("watchdog: {swap_growth: {soft: 0.01}}", 2, "watchdog.swap_growth.soft", "0.01 is not a part", "1%"),
    ("watchdog: {swap_growth: {soft: 0%}}", 2, "watchdog.swap_growth.soft", "out of range", "over 0%"),
    ("watchdog: {footprint: {limit: 101%}}", 2, "watchdog.footprint.limit", "out of range", "up to 100%"),
    ("watchdog: {stall: {soft: 20}}", 2, "watchdog.stall.soft", "20 has no unit", "20s"),
    ("watchdog: {step_inflation: {soft: 1}}", 2, "watchdog.step_inflation.soft", "out of range", "from 1.01"),
    ("watchdog: {step_inflation: {soft: .nan}}", 2, "watchdog.step_inflation.soft", "a number belongs", ""),
    ("watchdog: {step_inflation: {soft: .inf}}", 2, "watchdog.step_inflation.soft", "a number belongs", ""),
    ("watchdog: {step_inflation: {soft: 1e999}}", 2, "watchdog.step_inflation.soft", "out of range", ""),
    ("watchdog: {step_inflation: {soft: 02.5}}", 2, "watchdog.step_inflation.soft", "a number belongs", ""),
    ("watchdog: {sample_every: 1ms}", 2, "watchdog.sample_every", "out of range", "from 10ms to 10s"),
    ("watchdog: {pressure: {level: high}}", 2, "watchdog.pressure.level", "high", "warning or critical"),
    # keys
    ("batchs: [1]", 2, "batchs", "is not a key here", "did you mean batches?"),
    ("gen-tokens: 4", 2, "gen-tokens", "is not a key here", "did you mean gen_tokens?"),
    ("on: 1", 2, "on", "is not a key here", "model"),
    ("zzzzz: 1", 2, "zzzzz", "is not a key here", "the keys are model, "),
    ("watchdog: {stal: {}}", 2, "watchdog.stal", "is not a key here", "did you mean stall?"),
    ("watchdog: {mode: watch}", 2, "watchdog.mode", "watch", "enforce or observe"),
    ("watchdog: {zzzzz: 1}", 2, "watchdog.zzzzz", "is not a key here", "the keys are"),
    ("cooldown: {min_s: 1s}", 2, "cooldown.min_s", "is not a key here", "did you mean min?"),
    ("reps: 3\nreps: 4", 3, "reps", "is given twice, at line 2 and again at line 3", "keep one"),
    ("retries: {failed: 1, failed: 2}", 2, "retries.failed", "is given twice", "keep one"),
    ("watchdog: [1]", 2, "watchdog", "a list stands where a mapping belongs", "write its keys (mode"),
    ("cooldown: 5s", 2, "cooldown", "5s stands where a mapping belongs", "write its keys (min, max"),
    ("retries:", 2, "retries", "no value stands where a mapping belongs", "crashed"),
    ("? [a]\n: 1", 2, "", "in place of a key", "a key is a word"),
    ("'': 1", 2, "", "a value without a key", "key: value"),
    # environment
    ("env: [A]", 2, "env", "a list stands where a mapping belongs", "NAME: value"),
    ("env: {A=B: x}", 2, "env.A=B", "is not the name of a variable", "write"),
    ("env: {A: [1]}", 2, "env.A", "a list stands where text belongs", "quotes"),
    ("env: {A: }", 2, "env.A", "no value stands where text belongs", "quotes"),
    # later versions
    ("admission: {limit: 80%}", 2, "admission", "not available in this version yet", "leave it out"),
    ("admission: {limit: 90%, action: skip}", 2, "admission", "not available", "leave it out"),
    ("refine: {resolution: 10%}", 2, "refine", "not available in this version yet", "leave it out"),
    ("notify: x", 2, "notify", "not available in this version yet", "leave it out"),
    ("fleet: []", 2, "fleet", "not available in this version yet", "leave it out"),
    # YAML
    ("seed: !!int '1'", 2, "seed", "the tag !!int", "leave it out"),
    ("seed: !!python/object/apply:os.system [x]", 2, "seed", "the tag !!python/object/apply", "out"),
    ("seed: *nothing", 2, "seed", "has no anchor &nothing", ""),
    ("env: &e {A: *e}", 2, "env.A", "stands inside its own anchor", "write it out"),
    ("<<: 1", 2, "", "`<<` takes in a mapping", "<<: *anchor"),
    ("seed: 1\n---\nseed: 2", 3, "", "a second document", "one plan to a file"),
    ("\tseed: 1", 2, "", "a tab stands here", "spaces"),
    ("seed: 1\n\treps: 2", 3, "", "a tab stands here", "spaces"),
    ("seed: [1", None, "", "is not YAML", "key: value"),
    ("seed: 'x", None, "", "is not YAML", "key: value"),
    ("seed: \x07", 2, "", "has no place in a plan", "leave it out"),
    ('name: "\\UFFFFFFFF"', None, "", "is not YAML", ""),
    ("seed: " + "[" * 60 + "]" * 60, 2, "", "nested deeper than 50 levels", ""),
    # repetitions
    ("reps: {min: 0}", 2, "reps.min", "0 is out of range", "from 1 to 1000"),
    ("reps: {least: 3}", 2, "reps.least", "is not a key here", "min, max, until_cv, max_time"),
    ("reps: {until_cv: 3%}", 2, "reps.until_cv", "3% stands where a number belongs", "2.5"),
    ("reps: {max_time: 5}", 2, "reps.max_time", "5", "5s"),
    ("reps: {min: 20}", 2, "reps", "min is over max", "at most as large"),
    ("reps: [3]", 2, "reps", "a list stands where one whole number belongs", "a number alone"),
    ("sentinel: 0", 2, "sentinel", "0 is out of range", "from 1 to"),
    ("interleave: yes", 2, "interleave", "stands where true or false belongs", "write true"),
    ("interleave: true\nsentinel: 6", 3, "sentinel", "interleave spreads every cell", "leave one of the two out"),
    # keys that bear on each other
    ("prefill_logits: all", 2, "prefill_logits", "needs engine: lockstep", "write last"),
    ('faults: {"c00064-b001": hang}', 2, "faults", "only engine: faulty plays faults", "leave faults out"),
    ('engine: faulty\nfaults: {"c9*": hang}', 3, "faults.c9*", "matches no cell", "c00064-b001"),
    ("engine: faulty\nfaults: {c*: }", 3, "faults.c*", "a fault belongs", ""),
    ("cooldown: {min: 5m}", 2, "cooldown", "min is longer than max", "write"),
    ("watchdog: {swap_growth: {soft: 9%}}", 2, "watchdog.swap_growth", "soft (9%) is over hard (8%)", ""),
    ("watchdog: {swap_growth: {soft: 1GB}}", 2, "watchdog.swap_growth", "both as percentages", "sizes"),
    ("watchdog: {stall: {soft: 2m}}", 2, "watchdog.stall", "soft is over hard", "write"),
    ("exclude: [{contexts: [65]}]", 2, "exclude[0].contexts[0]", "65 is not among the plan's contexts", ""),
    ("exclude: [{variants: [a]}]", 2, "exclude[0].variants[0]", "a is not among the plan's variants", ""),
    ("exclude: [{}]", 2, "exclude[0]", "would leave out every cell", "write"),
    ("exclude: [{contexts: [64, 128]}]", 2, "exclude", "leaves no cell", "exclude less"),
    # variants
    ("variants: [{name: a, kv_bits: 3}]", 2, "variants[0].kv_bits", "3 is not possible", "4, 8 or null"),
    ("variants: [{kv_bits: 4}]", 2, "variants[0].name", "is missing", "name: kv8"),
    ("variants: [a]", 2, "variants[0]", "a stands where a mapping belongs", "write"),
    ("variants: [{name: a, batches: [1]}]", 2, "variants[0].batches", "cannot differ by variant", "kv_bits"),
    ("variants: [{name: a, order: x}]", 2, "variants[0].order", "cannot differ by variant", "kv_bits"),
    ("variants: [{name: a}, {name: A}]", 2, "variants[1].name", "names another variant too", ""),
    ("variants: [{name: a/b}]", 2, "variants[0].name", "cannot name a variant", "write"),
    ("variants: [{name: a, model: x}]", 2, "variants[0].model", "neither a folder", "hub id"),
    ("variants: [{name: a, prefill_logits: all}]", 2, "variants[0].prefill_logits", "needs engine", "last"),
]  # fmt: skip


@pytest.mark.parametrize("slip", SLIPS, ids=[slip[0][:40] for slip in SLIPS])
def test_each_slip_is_answered_with_its_line_its_key_and_a_remedy(
    slip: tuple[str, int | None, str, str, str],
) -> None:
    text, line, key, wrong, right = slip
    # The slip takes the place of the same key of the good plan, behind a first line that is always right.
    given = {part.split(":")[0] for part in text.splitlines()}
    rest = "\n".join(part for part in GOOD.splitlines()[1:] if part.split(":")[0] not in given)
    found = problems(f"model: org/model\n{text}\n{rest}\n")
    matching = [problem for problem in found if wrong in problem and right in problem]
    assert matching, found
    if line is not None:
        assert matching[0].startswith(f"plan.yaml:{line}: {key}: " if key else f"plan.yaml:{line}: "), found
    # A tag in front of quotes is two slips, and what stands before a syntax error is judged as well.
    assert len(found) == 1 or "!!" in text, found


def test_all_problems_are_told_at_once_in_the_order_of_their_lines() -> None:
    found = problems(
        "modle: a/b\n"
        "batches: [1, 1, 0]\n"
        "contexts: 512\n"
        "reps: 1_0\n"
        "watchdog: {swap_growth: {soft: 9%}, stall: {soft: 5}}\n"
        "cooldown: {min: 5m}\n"
        "variants:\n  - {name: a, kv_bits: 5}\n  - {kv_bits: 8}\n"
        "prefill_logits: most\n"
    )
    keys = [problem.split(": ")[1] for problem in found]
    lines = [int(problem.split(":")[1]) for problem in found]
    assert lines == sorted(lines)
    assert set(keys) == {
        "model", "modle", "batches[1]", "batches[2]", "contexts", "reps", "watchdog.stall.soft",
        "watchdog.swap_growth", "cooldown", "variants[0].kv_bits", "variants[1].name", "prefill_logits",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no plan; the smallest plan has model, batches and contexts"),
        ("# only\n# comments\n", "holds no plan"),
        ("---\n", "holds no plan"),
        ("- a\n", "a list is no plan"),
        ("word\n", "word is no plan"),
        ("reps: 3\n", "model: is missing; write `model:"),
    ],
)
def test_a_text_without_a_plan(text: str, words: str) -> None:
    assert words in "\n".join(problems(text))


def test_too_many_cells_are_refused_with_their_number() -> None:
    axes = f"batches: {list(range(1, 402))}\ncontexts: {list(range(2, 252))}\n"
    (found,) = problems("model: a/b\n" + axes)
    assert "250 x 401 = 100250 cells" in found
    assert "at most 100000" in found


def test_a_bomb_of_anchors_is_refused_and_names_its_line() -> None:
    bomb = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
    bomb += "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12))
    (found,) = problems(bomb)
    assert found.startswith("plan.yaml:5: ")
    assert "more than 100000 values" in found


def test_a_tower_of_anchors_is_refused() -> None:
    tower = "a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 2000))
    assert "nested deeper than 50 levels" in problems(tower)[-1]


def test_anchors_and_merge_keys_in_reasonable_use() -> None:
    plan = read(
        "model: org/model\nbatches: &b [1, 2]\ncontexts: [64]\nexclude: [{batches: [2], contexts: [64]}]\n"
        "variants:\n  - &kv {name: kv8, kv_bits: 8, reps: 3}\n  - {<<: *kv, name: kv4, kv_bits: 4}\n"
        "  - {name: more, <<: [{reps: 7}, *kv]}\n"
    )
    assert [(v.name, v.kv_bits, v.reps) for v in plan.variants] == [
        ("kv8", 8, 3),
        ("kv4", 4, 3),
        ("more", 8, 7),
    ]
    assert [cell.cell_id for cell in plan.cells()] == [
        "kv8/c00064-b001",
        "kv4/c00064-b001",
        "more/c00064-b001",
    ]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("100ms", 0.1), ("5s", 5.0), ("30m", 1800.0), ("1h30m", 5400.0), ("1.5h", 5400.0), ("1d", 86400.0),
     ("1m500ms", 60.5), ("0.25s", 0.25), ("'5s'", 5.0)],
)  # fmt: skip
def test_durations(text: str, seconds: float) -> None:
    assert read(f"{GOOD}cell_time_limit: {text}\n").cell_time_limit == seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("400MB", 400_000_000),
        ("1.5GB", 1_500_000_000),
        ("1GiB", 1 << 30),
        ("64 MiB", 64 << 20),
        ("null", None),
    ],
)
def test_sizes(text: str, size: int | None) -> None:
    assert read(f"{GOOD}worker_memory: {text}\n").worker_memory == size


@pytest.mark.parametrize(
    ("text", "size"), [("1%", 10_000_000), ("0.5%", 5_000_000), ("100%", 10**9), ("400MB", 400_000_000)]
)
def test_shares_of_memory(text: str, size: int) -> None:
    plan = read(f"{GOOD}watchdog: {{footprint: {{limit: {text}}}}}\n")
    assert plan.watchdog.footprint.limit.bytes_of(10**9) == size


def test_words_that_yaml_would_bend() -> None:
    plan = read(
        f'{GOOD}name: "2024"\ndeadline: 23:30\nwired_limit: off\nrevision: 1e10\n'
        "env: {OMP_NUM_THREADS: 1, A: 010, B: yes, C: 1.50, D: ''}\n"
    )
    assert (plan.name, plan.wired_limit, plan.revision) == ("2024", "off", "1e10")
    assert plan.deadline is not None
    assert plan.deadline.clock == "23:30"
    assert plan.env == {"A": "010", "B": "yes", "C": "1.50", "D": "", "OMP_NUM_THREADS": "1"}


def test_keys_of_later_versions_at_their_default() -> None:
    text = "admission: {limit: 90%, action: run}\nrefine: false\n"
    text += "notify:\nfleet: ~\n"
    assert read(GOOD + text) == read(GOOD)


def test_repetitions_are_a_number_or_as_many_as_it_takes() -> None:
    assert read(GOOD + "reps: 3\n").settings(None).repeats == Repeats(3, 3)
    adaptive = read(GOOD + "reps: {max: 20, max_time: 90s}\n")
    assert adaptive.settings(None).repeats == Repeats(3, 20, 0.03, 90.0)
    assert read(GOOD + "reps: {}\n").settings(None).repeats == Repeats(3, 15, 0.03, 300.0)
    frozen = plan_to_yaml(adaptive)
    assert "reps: {min: 3, max: 20, until_cv: 0.03, max_time: 1m30s}" in frozen
    assert read(frozen) == adaptive
    assert plan_digest(read(frozen)) == plan_digest(adaptive)


def test_a_variant_s_repetitions_are_its_own_as_a_whole() -> None:
    plan = read(
        f"{GOOD}reps: {{min: 4}}\nvariants: [{{name: a, reps: {{max: 9}}}}, {{name: b, reps: 2}}, {{name: c}}]\n"
    )
    assert [plan.settings(name).repeats.least for name in "abc"] == [3, 2, 4]
    assert [plan.settings(name).repeats.most for name in "abc"] == [9, 2, 15]
    assert read(plan_to_yaml(plan)) == plan


def test_a_variant_takes_from_the_plan_what_it_does_not_say() -> None:
    plan = read(
        f"{GOOD}reps: 7\nenv: {{A: x, B: y}}\nrevision: abc\ntrust_remote_code: true\n"
        "watchdog: {swap_growth: {soft: 2%, hard: 9%}, stall: {soft: 30s}}\n"
        "variants:\n"
        "  - {name: plain}\n"
        "  - {name: own, kv_bits: 8, reps: 2, env: {B: z}, watchdog: {swap_growth: {hard: 10%}}}\n"
        "  - {name: other, model: org/other}\n"
    )
    plain, own, other = (plan.settings(name) for name in ("plain", "own", "other"))
    base = plan.settings(None)
    assert {k: getattr(plain, k) for k in type(base).model_fields} == {
        k: getattr(base, k) for k in type(base).model_fields
    }
    assert (own.kv_bits, own.reps, own.env) == (8, 2, {"A": "x", "B": "z"})
    assert (own.watchdog.swap_growth.soft, own.watchdog.swap_growth.hard) == (
        Share(frac=0.02),
        Share(frac=0.1),
    )
    assert own.watchdog.stall.soft_s == 30.0
    assert own.revision == "abc"
    assert (other.model, other.revision, other.trust_remote_code) == ("org/other", None, False)
    with pytest.raises(KeyError):
        plan.settings("nobody")


def test_the_cells_are_in_the_order_written_and_exclusions_are_cross_products() -> None:
    plan = read(
        "model: a/b\nbatches: [4, 1]\ncontexts: [128, 64]\nvariants: [{name: y}, {name: x}]\n"
        "exclude: [{variants: [y], contexts: [64]}, {batches: [1], contexts: [128]}]\n"
    )
    ids = [cell.cell_id for cell in plan.cells()]
    assert ids == ["y/c00128-b004", "x/c00128-b004", "x/c00064-b004", "x/c00064-b001"]


def test_faults_by_cell() -> None:
    plan = read(f'{GOOD}engine: faulty\nfaults: {{c00064-b001: hang, "c*-b001": "exit 3", "c00128-*": leak}}\n')
    faults = [fault_for(plan.settings(None).faults, cell.cell_id, 1) for cell in plan.cells()]
    assert faults == ["hang", None, "exit 3", "leak"]


def test_a_plan_from_options() -> None:
    plan = plan_from_options("org/Some-Model", (1, 2, 4), (512, 4096), 32, 3)
    assert (plan.name, plan.model, plan.gen_tokens, plan.reps) == ("Some-Model", "org/Some-Model", 32, 3)
    assert len(plan.cells()) == 6
    assert plan_from_options("org/m", (1,), (512,), name="mine").name == "mine"


def test_problems_of_options_name_the_flag() -> None:
    with pytest.raises(PlanError) as raised:
        plan_from_options("nonsense", (0,), (512, 512), 1, 0, "a/b")
    found = raised.value.problems
    flags = {problem.split(": ")[0] for problem in found}
    assert flags == {"-m/--model", "-b/--batches", "-c/--contexts", "-g/--gen-tokens", "-n/--reps", "--name"}


def test_a_plan_under_another_name() -> None:
    assert rename_plan(read(GOOD), "night 2").name == "night 2"
    with pytest.raises(PlanError, match=r"^--name: \.\./x cannot name a folder"):
        rename_plan(read(GOOD), "../x")


def test_a_flood_of_problems_is_cut() -> None:
    found = problems("".join(f"k{n}: 1\n" for n in range(2000)))
    assert len(found) <= 501
    found = problems(f"model: a/b\ncontexts: [64]\nbatches: [{'x, ' * 2000}]\n")
    assert len(found) == 501
    assert found[-1].endswith("problems more")
