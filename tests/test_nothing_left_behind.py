"""The rule that no test leaves anything behind, tested on tests that do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

CONFTEST = Path(__file__).with_name("conftest.py")
PARENT = """
import subprocess, sys
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
print(subprocess.Popen(sleep, start_new_session=True, stdout=subprocess.DEVNULL).pid)
"""


def run_tests(folder: Path, body: str) -> subprocess.CompletedProcess[str]:
    """Runs a test file under a copy of this conftest, with almost no grace."""
    text = CONFTEST.read_text(encoding="utf-8").replace("GRACE_S = 10.0", "GRACE_S = 0.3")
    (folder / "conftest.py").write_text(text, encoding="utf-8")
    (folder / "test_it.py").write_text(f"import pathlib, subprocess, sys\n{body}", encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)],
        capture_output=True,
        text=True,
        cwd=folder,
        env={k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")},
        timeout=120,
        check=False,
    )


def test_a_child_that_still_runs_fails_its_test_and_is_ended(tmp_path: Path) -> None:
    result = run_tests(
        tmp_path,
        "def test_leaves_a_child():\n"
        "    child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "    child.returncode = 0  # as if somebody had waited\n"
        "    pathlib.Path('pid').write_text(str(child.pid))\n"
        "def test_is_careful():\n"
        "    subprocess.run([sys.executable, '-c', ''], check=True)\n",
    )
    assert result.returncode == 1, result.stdout
    assert "left behind: process" in result.stdout
    assert "2 passed, 1 error" in result.stdout
    assert_gone(int((tmp_path / "pid").read_text(encoding="ascii")))


@pytest.mark.skipif(sys.platform != "linux", reason="orphans are found by their environment, in /proc")
def test_an_orphan_fails_its_test_and_is_ended(tmp_path: Path) -> None:
    result = run_tests(
        tmp_path,
        "def test_leaves_an_orphan():\n"
        f"    parent = [sys.executable, '-c', {PARENT!r}]\n"
        "    pathlib.Path('pid').write_bytes(subprocess.check_output(parent))\n",
    )
    assert "left behind: process" in result.stdout
    assert_gone(int((tmp_path / "pid").read_text(encoding="ascii")))


@pytest.mark.skipif(
    not os.access("/sys/fs/cgroup", os.W_OK) or os.statvfs("/sys/fs/cgroup").f_flag & os.ST_RDONLY,
    reason="this user may not make cgroups",
)
def test_a_cgroup_fails_its_test_and_is_removed(tmp_path: Path) -> None:
    folder = next(p for p in (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")) if p.is_dir())
    group = folder / f"wallfinder-left-{os.getpid()}"
    try:
        result = run_tests(
            tmp_path,
            "def test_leaves_a_group():\n"
            f"    group = pathlib.Path('{group}')\n"
            "    group.mkdir()\n"
            "    child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
            "    child.returncode = 0  # as if somebody had waited\n"
            "    (group / 'cgroup.procs').write_text(str(child.pid))\n",
        )
        assert f"cgroup {group}" in result.stdout
        assert not group.exists()
    finally:
        if group.exists():
            group.rmdir()


@pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0 or shutil.which("mkswap") is None,
    reason="only root on Linux may switch swap on",
)
def test_a_swap_file_fails_its_test_and_is_switched_off(tmp_path: Path) -> None:
    file = tmp_path / "swap"
    with file.open("wb") as opened:
        os.posix_fallocate(opened.fileno(), 0, 1 << 20)
    file.chmod(0o600)
    subprocess.run(["mkswap", str(file)], check=True, capture_output=True)
    probe = subprocess.run(["swapon", str(file)], check=False, capture_output=True, text=True)
    if probe.returncode != 0:
        pytest.skip(f"no swap file can be used here: {probe.stderr.strip()}")
    subprocess.run(["swapoff", str(file)], check=True)
    try:
        result = run_tests(
            tmp_path,
            "import os\n"
            "def test_leaves_swap():\n"
            "    folder = pathlib.Path(f'wallfinder-swap-{os.getpid()}-left').resolve()\n"
            "    folder.mkdir()\n"
            f"    file = pathlib.Path({str(file)!r}).rename(folder / 'swap')\n"
            "    subprocess.run(['swapon', str(file)], check=True)\n",
        )
        assert "left behind: swap file" in result.stdout
        assert str(tmp_path) not in Path("/proc/swaps").read_text(encoding="utf-8")
    finally:
        for left in tmp_path.rglob("swap"):
            subprocess.run(["swapoff", str(left)], check=False, capture_output=True)


def assert_gone(pid: int) -> None:
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
