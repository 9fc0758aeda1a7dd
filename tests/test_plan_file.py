"""The plan file as a file: what is not there, not readable, not text, or too much; and arbitrary bytes."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from orchestrator.plan import Place, Plan, PlanError, load_plan, parse_plan, plan_digest, plan_to_yaml

GOOD = "model: org/model\nbatches: [1, 2]\ncontexts: [64]\n"


def problem(path: Path) -> str:
    with pytest.raises(PlanError) as raised:
        load_plan(path)
    (text,) = raised.value.problems
    return text


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert (
        problem(tmp_path / "none.yaml") == f"{tmp_path}/none.yaml: there is no such file; give the path of a plan file"
    )


def test_a_folder_and_a_run_directory(tmp_path: Path) -> None:
    assert problem(tmp_path).startswith(f"{tmp_path}: is a folder")
    (tmp_path / "plan.yaml").write_text(GOOD)
    assert f"wallfinder resume {tmp_path}" in problem(tmp_path)


def test_a_fifo_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "is not a regular file" in problem(tmp_path / "pipe")


def test_devices_and_impossible_paths(tmp_path: Path) -> None:
    assert "is not a regular file" in problem(Path("/dev/zero"))
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert "cannot be read" in problem(tmp_path / "loop")
    assert "cannot be read" in problem(tmp_path / ("x" * 300))
    assert "cannot be read" in problem(tmp_path / "nul\0byte")
    (tmp_path / "file").write_text("x")
    assert "cannot be read" in problem(tmp_path / "file" / "plan.yaml")


def test_a_file_without_permission(tmp_path: Path) -> None:
    path = tmp_path / "secret.yaml"
    path.write_text(GOOD)
    path.chmod(0)
    as_root = os.geteuid() == 0  # root reads everything: be somebody else for a moment
    if as_root:
        os.seteuid(65534)
    try:
        assert "cannot be read: Permission denied" in problem(path)
    finally:
        if as_root:
            os.seteuid(0)


def test_a_file_name_that_is_not_utf8(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\x1b[31m.yaml"))
    text = problem(path)
    text.encode()
    assert "\x1b" not in text


def test_a_huge_file(tmp_path: Path) -> None:
    path = tmp_path / "huge.yaml"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    assert "larger than 1048576 bytes" in problem(path)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"name: x\nmodel: \xe9\n", ":2: byte 0xe9 is not UTF-8"),
        (GOOD.encode("utf-16"), ":1: is UTF-16 text; save the file as UTF-8"),
        (GOOD.encode("utf-16-be"), ":1: holds a NUL byte"),
        (b"name: x\nmodel: a\0b\n", ":2: holds a NUL byte"),
        (b"", ": holds no plan"),
        (b"# nothing\n", ": holds no plan"),
        (b"\xef\xbb\xbf", ": holds no plan"),
    ],
)
def test_bytes_that_are_no_plan(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "p.yaml"
    path.write_bytes(data)
    assert f"{path}{words}" in problem(path)


@pytest.mark.parametrize("data", [b"\xef\xbb\xbf" + GOOD.encode(), GOOD.replace("\n", "\r\n").encode()])
def test_a_byte_order_mark_and_windows_lines_are_fine(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "p.yaml"
    path.write_bytes(data)
    assert load_plan(path).batches == (1, 2)


@pytest.mark.parametrize(
    ("file", "name"),
    [("night.yaml", "night"), (".hidden.yaml", "hidden"), ("a b.yml", "a b"), ("...", "plan"),
     ("ü" * 60, "ü" * 60), ("-x.yaml", "x"), ("a\nb.yaml", "a-b"), ("😀" * 60 + ".yaml", "😀" * 50)],
)  # fmt: skip
def test_the_name_is_the_files_name_made_safe(tmp_path: Path, file: str, name: str) -> None:
    path = tmp_path / file
    path.write_text(GOOD)
    plan = load_plan(path)
    assert plan.name == name
    again = tmp_path / "again.yaml"
    again.write_text(plan_to_yaml(plan))
    assert load_plan(again) == plan


def test_a_mistake_is_found_where_an_anchor_put_it() -> None:
    text = "model: a/b\nbatches: [1]\ncontexts: [64]\nvariants:\n- &a {name: a, reps: 0}\n- {<<: *a, name: b}\n"
    with pytest.raises(PlanError) as raised:
        parse_plan(text, "p.yaml", Place(Path("/nowhere")))
    assert [problem.split(": ")[:2] for problem in raised.value.problems] == [
        ["p.yaml:5", "variants[0].reps"],
        ["p.yaml:5", "variants[1].reps"],
    ]


# -- arbitrary input: a Plan or a PlanError, nothing else

KEYS = list(Plan.model_fields)
ATOMS = st.sampled_from(
    [
        "1",
        "0",
        "-1",
        "010",
        "1_000",
        "1e3",
        "0x10",
        "190:20:30",
        "yes",
        "no",
        "on",
        "off",
        "null",
        "~",
        "true",
        "false",
        "4.0",
        ".inf",
        ".nan",
        "1%",
        "400MB",
        "5s",
        "30m",
        "07:00",
        "org/m",
        "./x",
        "~",
        "~nobody/x",
        "/",
        "a\\0b",
        '"\\ud800"',
        "''",
        '""',
        "*a",
        "&a",
        "!!int",
        "[]",
        "{}",
        "<<:",
        "---",
        "...",
        "?",
        "|",
        ">",
        "%",
        "@",
        "`",
        "99999999999999999999",
        "9e999",
    ]
) | st.text(max_size=8)
VALUES = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner, max_size=4).map(lambda items: f"[{', '.join(items)}]")
        | st.lists(st.tuples(st.sampled_from(KEYS) | ATOMS, inner), max_size=3).map(
            lambda pairs: "{" + ", ".join(f"{key}: {value}" for key, value in pairs) + "}"
        )
    ),
    max_leaves=12,
)
LINES = st.tuples(st.sampled_from(KEYS), VALUES).map(lambda pair: f"{pair[0]}: {pair[1]}")
PLANS = st.lists(LINES, max_size=8).map(lambda lines: "\n".join([*GOOD.splitlines(), *lines]))


def outcome(load: Callable[[], Plan]) -> tuple[Plan | None, list[str]]:
    try:
        return load(), []
    except PlanError as error:
        return None, error.problems


def reads_or_complains(text: str) -> None:
    plan, problems = outcome(lambda: parse_plan(text, "p.yaml", Place(Path("/nowhere"))))
    assert (plan is None) == bool(problems)
    for line in problems:
        assert line.startswith("p.yaml:")
        assert line.isprintable()
        line.encode()
    if plan is None:
        return
    again = parse_plan(plan_to_yaml(plan), "again.yaml", Place(Path("/elsewhere"), frozen=True))
    assert again == plan
    assert plan_digest(again) == plan_digest(plan)


@settings(max_examples=1500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(PLANS)
@example(GOOD + "env: {A: 1}\nname: '07'")
def test_fuzz_plans_that_look_like_plans(text: str) -> None:
    reads_or_complains(text)


@settings(max_examples=150, deadline=None)
@given(
    st.text(alphabet=st.characters(), max_size=200) | st.text(alphabet="[]{}&*!|>%@`'\"#-:?,.~<=\n\t ab01", max_size=80)
)
def test_fuzz_text(text: str) -> None:
    reads_or_complains(text)


@settings(max_examples=150, deadline=None)
@given(data=st.binary(max_size=300))
def test_fuzz_bytes(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.yaml"
    path.write_bytes(data)
    plan, problems = outcome(lambda: load_plan(path))
    assert (plan is None) == bool(problems)
