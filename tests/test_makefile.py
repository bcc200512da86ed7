"""What `make` relies on: finding a Python, installing once, the lock, the limits of size."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SH = "/bin/sh"

# Stands in for a Python. Questions (-c) go to the real one, `-m venv` makes a folder with a copy of this,
# `-m pip` is written down.
FAKE = f"""#!/bin/sh
case "$1 $2" in
"-c "*ensurepip*) exit $((1 - HAS_VENV)) ;;
"-c "*) exec '{sys.executable}' "$@" ;;
"-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
"-m pip") shift 2; echo "$@" >>calls; [ ! -e broken ] ;;
esac
"""


def script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def fake_python(path: Path, *, has_venv: bool = True) -> None:
    script(path, FAKE.replace("HAS_VENV", str(int(has_venv))))


@pytest.fixture
def bin_dir(tmp_path: Path) -> Path:
    """The only folder on PATH; it holds no Python yet."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in ("cksum", "cp", "cat", "dirname", "mkdir", "rm", "sed", "sh", "tail"):
        (folder / tool).symlink_to(shutil.which(tool) or pytest.fail(f"{tool} is missing"))
    return folder


def run(
    name: str, path: Path, folder: Path = ROOT, *arguments: str, python: str = ""
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SH, f"scripts/{name}", *arguments],
        cwd=folder,
        env={"PATH": str(path), "PYTHON": python},
        capture_output=True,
        text=True,
        check=False,
    )


def find(path: Path, python: str = "") -> subprocess.CompletedProcess[str]:
    return run("find_python.sh", path, python=python)


def test_the_newest_python_that_runs_is_found(bin_dir: Path) -> None:
    script(bin_dir / "python3.14", "#!/bin/sh\necho 'not installed' >&2; exit 127\n")  # a shim
    fake_python(bin_dir / "python3.13")
    fake_python(bin_dir / "python3.11")
    fake_python(bin_dir / "python3")
    assert find(bin_dir).stdout == "python3.13\n"


def test_one_that_can_make_a_venv_is_preferred_to_a_newer_one(bin_dir: Path) -> None:
    fake_python(bin_dir / "python3.13", has_venv=False)
    fake_python(bin_dir / "python3.11")
    assert find(bin_dir).stdout == "python3.11\n"


def test_the_package_to_install_is_named_where_venv_is_missing(bin_dir: Path) -> None:
    fake_python(bin_dir / "python3", has_venv=False)
    found = find(bin_dir)
    assert found.returncode == 1
    assert f"apt-get install python3.{sys.version_info.minor}-venv" in found.stderr


def test_too_old_a_python_and_none_at_all_give_the_same_clear_sentence(bin_dir: Path) -> None:
    sentences = [find(bin_dir).stderr]
    script(bin_dir / "python3", "#!/bin/sh\nexit 1\n")  # the answer to "at least 3.11?"
    sentences.append(find(bin_dir).stderr)
    for sentence in sentences:
        assert "found no working Python 3.11 or newer" in sentence
        assert "make PYTHON=" in sentence


def test_a_named_python_is_used_or_refused_and_never_replaced(
    bin_dir: Path, tmp_path: Path
) -> None:
    fake_python(bin_dir / "python3.13")
    named = tmp_path / "my python"
    fake_python(named)
    assert find(bin_dir, str(named)).stdout == f"{named}\n"
    refused = find(bin_dir, "/nowhere/python")
    assert refused.returncode == 1
    assert "PYTHON=/nowhere/python is no working Python" in refused.stderr


@pytest.fixture
def clone(tmp_path: Path, bin_dir: Path) -> Path:
    """A folder with what installing needs, and a fake Python on PATH."""
    folder = tmp_path / "a clone"
    (folder / "scripts").mkdir(parents=True)
    for name in (
        "scripts/install.sh",
        "scripts/find_python.sh",
        "requirements.lock",
        "requirements-dev.lock",
        "pyproject.toml",
    ):
        shutil.copy(ROOT / name, folder / name)
    fake_python(bin_dir / "python3")
    return folder


def pip_calls(clone: Path) -> int:
    return len((clone / "calls").read_text().splitlines()) if (clone / "calls").exists() else 0


def test_installing_says_one_line_and_happens_once(clone: Path, bin_dir: Path) -> None:
    first = run("install.sh", bin_dir, clone)
    assert first.returncode == 0, first.stderr
    assert re.fullmatch(r"jobq: installing into \.venv with Python 3\.\S+, .*\n", first.stderr)
    calls = pip_calls(clone)
    second = run("install.sh", bin_dir, clone)
    assert (second.returncode, second.stderr, pip_calls(clone)) == (0, "", calls)


def test_a_changed_lock_updates_the_same_venv(clone: Path, bin_dir: Path) -> None:
    run("install.sh", bin_dir, clone)
    calls = pip_calls(clone)
    (clone / ".venv" / "mine").touch()
    with (clone / "requirements.lock").open("a") as lock:
        lock.write("# changed\n")
    updated = run("install.sh", bin_dir, clone)
    assert updated.stderr == "jobq: updating .venv from requirements.lock\n"
    assert pip_calls(clone) > calls
    assert (clone / ".venv" / "mine").exists()


def test_the_larger_lock_is_added_once_and_contains_the_smaller(clone: Path, bin_dir: Path) -> None:
    run("install.sh", bin_dir, clone)
    added = run("install.sh", bin_dir, clone, "dev")
    assert added.stderr == "jobq: updating .venv from requirements-dev.lock\n"
    calls = pip_calls(clone)
    (clone / ".venv" / ".requirements.lock").unlink()  # only the larger one was installed
    run("install.sh", bin_dir, clone)
    run("install.sh", bin_dir, clone, "dev")
    assert pip_calls(clone) == calls


def test_a_moved_folder_gets_a_new_venv(clone: Path, bin_dir: Path) -> None:
    run("install.sh", bin_dir, clone)
    (clone / ".venv" / "stale").touch()
    moved = clone.rename(clone.with_name("moved"))
    assert "installing into .venv" in run("install.sh", bin_dir, moved).stderr
    assert not (moved / ".venv" / "stale").exists()


def test_a_failed_installation_shows_its_log_and_is_tried_again(clone: Path, bin_dir: Path) -> None:
    (clone / "broken").touch()
    failed = run("install.sh", bin_dir, clone)
    assert failed.returncode == 1
    assert "installing failed" in failed.stderr
    (clone / "broken").unlink()
    assert run("install.sh", bin_dir, clone).returncode == 0


def test_help_lists_every_target() -> None:
    make = shutil.which("make") or pytest.skip("make is missing")
    listed = subprocess.run(
        [make, "help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony
    assert re.findall(r"^  make (\S+)", listed, re.MULTILINE) == phony[1].split()


def locked(name: str) -> dict[str, str]:
    """The entries of a lock, by package."""
    entries = re.split(r"\n(?=\S)", (ROOT / name).read_text().strip())
    return {re.split(r"[=\[ ]", entry, maxsplit=1)[0]: entry for entry in entries}


@pytest.mark.parametrize(
    ("name", "extras"),
    [("requirements.lock", ["build"]), ("requirements-dev.lock", ["build", "dev"])],
)
def test_a_lock_pins_every_dependency_by_hash_and_names_no_index(
    name: str, extras: list[str]
) -> None:
    entries = locked(name)
    assert all(re.match(r"[a-z0-9.-]+==\S+ ", entry) for entry in entries.values())
    assert all("--hash=sha256:" in entry for entry in entries.values())
    assert not re.search(
        r"https?:|file:|--(extra-)?index-url|--find-links", "".join(entries.values())
    )

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"]]
    for extra in extras:
        wanted += project["optional-dependencies"][extra]
    assert {re.split(r"[\[>; ]", each, maxsplit=1)[0] for each in wanted} <= entries.keys()


def test_running_jobq_needs_no_linter_and_no_test_tool() -> None:
    tools = {"coverage", "hypothesis", "matplotlib", "mypy", "pytest", "ruff"}
    assert not tools & locked("requirements.lock").keys()


def test_both_locks_pin_the_same_versions() -> None:
    runtime, everything = (
        {name: entry.split()[0] for name, entry in locked(lock).items()}
        for lock in ("requirements.lock", "requirements-dev.lock")
    )
    assert runtime.items() < everything.items()


def check_size(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "scripts" / "check_size.py", folder],
        capture_output=True,
        text=True,
        check=False,
    )


def function(lines: int) -> str:
    return "def long():\n" + "    pass\n" * (lines - 1)


@pytest.mark.parametrize(
    ("path", "text", "accepted"),
    [
        ("src/a.py", function(60), True),
        ("src/a.py", function(61), False),
        ("tests/a.py", function(61), True),
        ("tests/a.py", "x = 1\n" * 400, True),
        ("tests/a.py", "x = 1\n" * 401, False),
    ],
)
def test_files_and_functions_have_a_limit(
    tmp_path: Path, path: str, text: str, accepted: bool
) -> None:
    (tmp_path / path).parent.mkdir()
    (tmp_path / path).write_text(text)
    assert (check_size(tmp_path).returncode == 0) is accepted
