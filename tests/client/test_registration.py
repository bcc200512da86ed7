"""Mistakes at the decorator are found where they are made, and what is no mistake works at once."""

from __future__ import annotations

import importlib
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.engine.support import Jobs, working

from jobq import JobQ
from jobq.config import Settings
from jobq.engine.worker import Worker
from jobq.errors import ConfigurationError


@pytest.fixture
def app() -> JobQ:
    return JobQ("postgresql://nobody@localhost:1/none")


@pytest.mark.case("N17")
def test_a_decorator_without_parentheses_is_refused(app: JobQ) -> None:
    decorate: Callable[..., Any] = app.job
    with pytest.raises(ConfigurationError, match=r'write @app\.job\("email\.welcome"\)'):

        @decorate
        async def send() -> None: ...

    assert len(app.handlers) == 0


@pytest.mark.case("N17")
def test_methods_are_refused_where_they_are_written(app: JobQ) -> None:
    with pytest.raises(ConfigurationError, match=r"Service\.send is a method"):

        class Service:
            @app.job("k.m")
            def send(self, to: str) -> None: ...

    with pytest.raises(ConfigurationError, match=r"Factory\.send is a method"):

        class Factory:
            @app.job("k.c")
            @classmethod
            def send(cls, to: str) -> None: ...

    with pytest.raises(ConfigurationError, match=r"Other\.send is a method"):

        class Other:
            @classmethod
            @app.job("k.d")
            def send(cls, to: str) -> None: ...

    with pytest.raises(ConfigurationError, match="no parameter may be called self"):

        @app.job("k.s")
        def send(to: str, self: str) -> None: ...

    with pytest.raises(ConfigurationError, match="must be a function, not 17"):
        app.job("k.n")(17)  # type: ignore[call-overload]
    assert len(app.handlers) == 0


def test_static_methods_and_methods_of_an_object_are_functions(app: JobQ) -> None:
    class Service:
        @staticmethod
        @app.job("k.static")
        def static(to: str) -> None: ...

        def bound(self, to: str) -> str:
            return to

    job = app.job("k.bound")(Service().bound)
    assert job("a") == "a"
    assert job.new(to="a").payload == '{"to":"a"}'
    assert Service.static.new(to="b").payload == '{"to":"b"}'


MODULE = """
from jobq import JobQ

app = JobQ("postgresql://nobody@localhost:1/none") if "app" not in globals() else app

@app.job("k")
def send(to: str) -> None: ...
"""


def test_a_module_that_is_reloaded_replaces_its_handlers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "reloaded_jobs.py"
    path.write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    module = importlib.import_module("reloaded_jobs")
    path.write_text(MODULE.replace('@app.job("k")', '\n\n@app.job("k")').replace("to:", "name:"))
    importlib.reload(module)
    assert module.app.handlers["k"].check(name="a") == {"name": "a"}
    path.write_text(MODULE + MODULE[MODULE.index("@app") :])
    with pytest.raises(ConfigurationError, match="'k' has two handlers"):
        importlib.reload(module)


def test_a_function_that_is_defined_anew_in_a_session_replaces_itself(app: JobQ) -> None:
    names = {"app": app, "__name__": "__main__"}
    for parameter in ("to", "name"):
        exec(f"@app.job('k')\ndef send({parameter}: str) -> None: ...", names)
    assert app.handlers["k"].check(name="a") == {"name": "a"}


@pytest.mark.case("N18")
async def test_kinds_are_the_same_however_the_module_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database_url: str
) -> None:
    (tmp_path / "main_app.py").write_text(
        "from jobq import JobQ\napp = JobQ()\n@app.job('one')\nasync def one() -> None: ...\nimport other\n"
    )
    (tmp_path / "other.py").write_text(
        "from main_app import app\n@app.job('two')\ndef two() -> None: ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    started = runpy.run_path(str(tmp_path / "main_app.py"), run_name="__main__")
    assert set(started["app"].handlers) == {"one"}, "a script is not the module that others import"
    module = importlib.import_module("main_app")
    assert set(module.app.handlers) == {"one", "two"}
    jobs = Jobs(database_url)
    async with working(database_url, dict(module.app.handlers)):
        await jobs.finished([jobs.put("one"), jobs.put("two")])
    assert jobs.statuses() == {"DONE": 2}
    jobs.close()
    for name in ("main_app", "other"):
        sys.modules.pop(name, None)


def test_a_kind_may_ask_for_durable_claims() -> None:
    app = JobQ("postgresql://nowhere.invalid/x")
    app.job("pay", durable=True)(lambda: None)
    app.job("log")(lambda: None)
    worker = Worker(Settings(database_url="postgresql://nowhere.invalid/x"), app.handlers)
    assert worker.dispatcher.settings.durable == ["pay"]
    with pytest.raises(ConfigurationError, match="durable must be True or False"):
        app.job("other", durable="yes")(lambda: None)  # type: ignore[arg-type]
