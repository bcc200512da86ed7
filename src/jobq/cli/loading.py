"""Loads the app that a command is given as `module:attribute`."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path
from typing import Any

from jobq import config
from jobq.client import JobQ
from jobq.config import Settings
from jobq.errors import ConfigurationError

#: The app of `jobq.demo`, which `jobq dev` takes where none is named.
DEMO = "jobq.demo:app"


def settings_of(app: JobQ, /, **arguments: Any) -> Settings:
    """The settings of a process that serves an app: arguments over what the app was made with.

    Args:
        arguments: by field name of `Settings`; None is not given.

    Raises:
        ConfigurationError: one sentence that names every offending setting.
    """
    checked = config.load(**arguments)
    given = {name: getattr(checked, name) for name, value in arguments.items() if value is not None}
    return app.settings.model_copy(update=given)


def load_app(name: str) -> JobQ:
    """Import the `JobQ` that a name such as `shop.jobs:app` stands for.

    The current directory is importable, as it is for `python -m`.

    Raises:
        ConfigurationError: there is no such module or attribute, or it is no `JobQ`.
    """
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute:
        raise ConfigurationError(
            f"--app {name!r} must be module:attribute, for example shop.jobs:app"
        )
    directory = str(Path.cwd())
    if directory not in sys.path:
        sys.path.insert(0, directory)
    module = _import(module_name)
    found: object = module
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise ConfigurationError(
                f"--app {name!r}: module {module_name} has no attribute {attribute}"
            ) from None
    if not isinstance(found, JobQ):
        raise ConfigurationError(
            f"--app {name!r} is {type(found).__name__}, not JobQ: name the variable with app = JobQ()"
        )
    return found


def _import(name: str) -> object:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigurationError(
                f"--app: there is no module {error.name} in {Path.cwd()} or among the installed packages"
            ) from None
        raise ConfigurationError(_failed(name, error)) from error
    except Exception as error:  # whatever the user's module does at import
        raise ConfigurationError(_failed(name, error)) from error


def _failed(name: str, error: Exception) -> str:
    """Where in the user's code the import failed: a sentence, since the way there is all of importlib."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "importlib" not in frame.filename and frame.filename != __file__
    ]
    place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"--app: importing {name} failed: {type(error).__name__}: {error}{place}"
