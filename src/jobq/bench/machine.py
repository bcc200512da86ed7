"""What a benchmark ran on: enough to judge the numbers by, nothing that names the machine."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

from jobq.db import Conn


def describe(conn: Conn) -> dict[str, Any]:
    """CPU model, cores, memory in GiB, Python, PostgreSQL and kernel; no host name and no path."""
    row = conn.execute("SHOW server_version").fetchone()
    settings = (
        conn.execute("SHOW fsync").fetchone(),
        conn.execute("SHOW synchronous_commit").fetchone(),
    )
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "python": platform.python_version(),
        "postgresql": str(row[0]).split()[0] if row else None,
        "fsync": settings[0] is not None and settings[0][0] == "on",
        "synchronous_commit": settings[1][0] if settings[1] else None,
        "kernel": f"{platform.system()} {platform.release()}",
    }


def resident_memory(pid: int) -> float:
    """Resident memory of a process in MB, as `ps` tells on Linux and macOS."""
    found = subprocess.run(
        ["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=True
    )
    return int(found.stdout) * 1024 / 1e6


def room(folder: Path) -> int:
    """Bytes that may be used: of memory or of the disk a folder lies on, whichever has less left."""
    disk = shutil.disk_usage(folder).free
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # macOS frees memory when it is asked for
        return disk
    found = next(line for line in lines if line.startswith("MemAvailable"))
    return min(disk, int(found.split()[1]) * 1024)


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(
            line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")
        )
    except (OSError, StopIteration):  # macOS, or an ARM kernel that names no model
        return platform.processor() or platform.machine()
