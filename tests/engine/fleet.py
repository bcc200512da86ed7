"""Worker processes for tests, each with its log in a file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.engine.process import WITNESS
from tests.engine.support import Jobs, until


class Fleet:
    """Worker processes on one database."""

    def __init__(self, url: str, jobs: Jobs, folder: Path) -> None:
        self._url, self._jobs, self._folder = url, jobs, folder
        self.processes: list[subprocess.Popen[bytes]] = []
        jobs.conn.execute(WITNESS)

    async def start(self, **changes: Any) -> subprocess.Popen[bytes]:
        """Start a worker and wait until it says so."""
        process = self.launch(**changes)
        await self.started(process)
        return process

    def launch(self, **changes: Any) -> subprocess.Popen[bytes]:
        """Start a worker."""
        command = [sys.executable, "-m", "tests.engine.process", self._url, json.dumps(changes)]
        with (self._folder / f"worker-{len(self.processes)}.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        self.processes.append(process)
        return process

    async def started(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until a worker says that it has started."""
        await until(lambda: b"worker started" in self.log(process) or process.poll() is not None)
        assert process.poll() is None, self.log(process).decode()

    def log(self, process: subprocess.Popen[bytes]) -> bytes:
        """What a worker has written so far."""
        return self.log_file(process).read_bytes()

    def log_file(self, process: subprocess.Popen[bytes]) -> Path:
        """Where it writes that."""
        return self._folder / f"worker-{self.processes.index(process)}.log"

    def starts(self, what: str = "start") -> Counter[int]:
        """How often each job was started (or ended)."""
        rows = self._jobs.conn.execute("SELECT job_id FROM witness WHERE what = %s", (what,))
        return Counter(row["job_id"] for row in rows)

    def end(self) -> None:
        """Kill what still runs."""
        for process in self.processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
