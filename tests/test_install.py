"""What an install does, with a real pip: it brings what the lock names, whatever else an index offers."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# A build backend for the project that is installed: an editable wheel, made of the standard library alone.
BACKEND = """
import zipfile

def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    name = "product-1.0-py3-none-any.whl"
    with zipfile.ZipFile(f"{wheel_directory}/{name}", "w") as wheel:
        wheel.writestr("product.py", "")
        wheel.writestr("product-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: product\\nVersion: 1.0\\nRequires-Dist: alpha[fast]>=1\\n")
        wheel.writestr("product-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("product-1.0.dist-info/RECORD", "")
    return name
"""


class Index:
    """A folder of wheels that pip takes for its only index."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def offer(self, name: str, version: str, requires: Sequence[str] = ()) -> str:
        """Add a release; returns its entry for a lock."""
        metadata = (
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nProvides-Extra: fast\n"
        )
        metadata += "".join(f"Requires-Dist: {each}\n" for each in requires)
        files = {
            f"{name}.py": "",
            f"{name}-{version}.dist-info/METADATA": metadata,
            f"{name}-{version}.dist-info/WHEEL": (
                "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            ),
        }
        record = f"{name}-{version}.dist-info/RECORD"
        lines = [f"{path},sha256={_digest(text)},{len(text)}" for path, text in files.items()] + [
            f"{record},,"
        ]
        wheel = self.folder / f"{name}-{version}-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            for path, text in (files | {record: "\n".join(lines) + "\n"}).items():
                archive.writestr(path, text)
        return f"{name}=={version} --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n"


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return Index(tmp_path / "index")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A project with this one's install script; it wants alpha with its extra `fast`."""
    folder = tmp_path / "a clone"
    (folder / "scripts").mkdir(parents=True)
    for name in ("install.sh", "find_python.sh"):
        shutil.copy(ROOT / "scripts" / name, folder / "scripts" / name)
    (folder / "backend.py").write_text(BACKEND)
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    return folder


def install(clone: Path, index: Index, lock: str) -> subprocess.CompletedProcess[str]:
    (clone / "requirements.lock").write_text(lock)
    return subprocess.run(
        ["/bin/sh", "scripts/install.sh"],
        cwd=clone,
        env={
            "PATH": os.environ["PATH"],
            "PYTHON": sys.executable,
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(index.folder),
        },
        capture_output=True,
        text=True,
        check=False,
    )


def installed(clone: Path) -> set[str]:
    listed = subprocess.run(
        [clone / ".venv/bin/python", "-m", "pip", "list", "--format=freeze", "--exclude=pip"],
        env={"PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return {line for line in listed.stdout.split() if not line.startswith("setuptools==")}


def test_releases_younger_than_the_lock_change_nothing(clone: Path, index: Index) -> None:
    lock = index.offer("alpha", "1.0", ["beta[fast]>=1"])
    lock += index.offer("beta", "1.0", ['gamma; extra == "fast"'])
    lock += index.offer("gamma", "1.0")
    index.offer("beta", "2.0", ['gamma>=2; extra == "fast"', "delta"])
    index.offer("gamma", "2.0")
    index.offer("delta", "1.0")
    done = install(clone, index, lock)
    assert done.returncode == 0, done.stderr
    assert installed(clone) == {"alpha==1.0", "beta==1.0", "gamma==1.0", "product==1.0"}


def test_a_lock_that_lacks_a_package_fails_by_name(clone: Path, index: Index) -> None:
    lock = index.offer("alpha", "1.0", ["beta>=1"])
    index.offer("beta", "1.0")
    done = install(clone, index, lock)
    assert done.returncode == 1
    assert "alpha 1.0 requires beta, which is not installed" in done.stderr


def test_a_package_that_was_exchanged_is_refused(clone: Path, index: Index) -> None:
    lock = index.offer("alpha", "1.0")
    index.offer("alpha", "1.0", ["beta"])  # the same version, other content
    done = install(clone, index, lock)
    assert done.returncode == 1
    assert "DO NOT MATCH THE HASHES" in done.stderr
