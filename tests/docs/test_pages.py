"""The pages say what the code does: settings, commands, links, and examples that run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from typer.main import get_command

from jobq import config
from jobq.cli import app

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def section(page: str, heading: str) -> str:
    """What stands under a heading, up to the next of its level or above."""
    level = len(heading) - len(heading.lstrip("#"))
    found = re.search(
        rf"^{re.escape(heading)}$(.*?)(?=^#{{1,{level}}} |\Z)", page, re.MULTILINE | re.DOTALL
    )
    assert found, f"there is no heading {heading!r}"
    return found[1]


def commands() -> Iterator[tuple[str, Any]]:
    """Every command by its full name."""
    group: Any = get_command(app)
    for name, command in group.commands.items():
        for inner, leaf in getattr(command, "commands", {}).items():
            yield f"{name} {inner}", leaf
        if not hasattr(command, "commands"):
            yield name, command


def options(command: Any) -> set[str]:
    """Long options of a command."""
    names = {name for parameter in command.params for name in parameter.opts}
    return {name for name in names if name.startswith("--")} - {"--help"}


def settings() -> dict[str, str]:
    """Name -> default, as the table of settings has it."""
    table = section(read("docs/operations.md"), "## Settings")
    return dict(re.findall(r"^\| (JOBQ_\w+) \| (.*?) ?\|", table, re.MULTILINE))


def test_every_setting_is_in_the_table_with_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*settings(), "DATABASE_URL"]:
        monkeypatch.delenv(name, raising=False)
    names = {
        field.alias or f"JOBQ_{name.upper()}"
        for name, field in config.Settings.model_fields.items()
    }
    assert set(settings()) == names
    defaults = config.load()
    for name, default in settings().items():
        if default:
            monkeypatch.setenv(name, default)
    assert config.load() == defaults
    unset = {name for name, default in settings().items() if not default}
    for name, field in config.Settings.model_fields.items():
        if (field.alias or f"JOBQ_{name.upper()}") in unset:
            assert field.default in (None, "")


def test_every_command_has_its_section_with_all_its_options() -> None:
    page = read("docs/cli.md")
    headings = re.findall(r"^### jobq (.*)$", page, re.MULTILINE)
    under = {name: heading for heading in headings for name in heading.split(", ")}
    shortcuts = {"retry": "jobs retry", "cancel": "jobs cancel", "jobs why": "why"}
    assert under.keys() | shortcuts == {name for name, _ in commands()}
    for name, command in commands():
        heading = under[shortcuts.get(name, name)]
        text = section(page, f"### jobq {heading}")
        if name == "bench":
            continue  # docs/benchmarks.md tells
        assert set(re.findall(r"--[a-z][a-z-]*", text)) >= options(command), name
        written = set(re.findall(r"^\| (.*?) \|", text, re.MULTILINE))
        together = [leaf for other, leaf in commands() if under.get(other) == heading]
        known = {option for leaf in [command, *together] for option in options(leaf)}
        for option in re.findall(r"--[a-z][a-z-]*", " ".join(written)):
            assert option in known, f"{heading} has no {option}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path) if path else page
        assert linked.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.*)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {
                re.sub(r"[^\w -]", "", t).lower().replace(" ", "-") for t in titles
            }, target


def test_variables_that_pages_name_exist() -> None:
    known = set(settings())
    for page in PAGES:
        named = set(re.findall(r"\bJOBQ_[A-Z_]*[A-Z]\b", page.read_text(encoding="utf-8")))
        assert named <= known | {"JOBQ_TEST_PGBIN"}, page


def test_the_examples_of_the_readme_run(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBQ_DATABASE_URL", database_url)
    page = read("README.md")
    names: dict[str, Any] = {"psycopg": psycopg, "url": database_url}
    with psycopg.connect(database_url, autocommit=True) as conn:
        conn.execute("CREATE TABLE orders (id bigint)")
        for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
            exec(compile(block, "README.md", "exec"), names)  # our own page
        for block in re.findall(r"```sql\n(.*?)```", page, re.DOTALL):
            for statement in filter(str.strip, block.split(";\n")):
                conn.execute(statement)
        kinds = conn.execute("SELECT kind, count(*) FROM jobq.jobs GROUP BY kind").fetchall()
    names["app"].close()
    assert kinds == [("email.welcome", 6)]  # one of them from SQL; welcome-42 is per tenant
