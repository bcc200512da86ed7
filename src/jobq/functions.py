"""What can be told of a handler's function: what it is called, where it was defined, whether it is a method."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


def plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself of a partial, a bound method or an object that can be called."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.ismethod(function):
        return function.__func__
    if not inspect.isroutine(function) and not inspect.isclass(function):
        return type(function).__call__
    return function


def describe(function: Callable[..., Any]) -> str:
    """Its module and qualified name."""
    itself = plain(function)
    return f"{itself.__module__}.{itself.__qualname__}"


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    """Whether calling it makes a coroutine."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(plain(function))


def is_unbound_method(function: Any) -> bool:
    """Whether a call would have to give it an object or class first, as a decorator in a class body finds it."""
    if isinstance(function, classmethod):
        return True
    if not inspect.isfunction(function):
        return False
    first = next(iter(inspect.signature(function).parameters), None)
    return first == "self" or (first == "cls" and _in_class_body(function))


def is_same_definition(before: Callable[..., Any], after: Callable[..., Any]) -> bool:
    """Whether one `def` was executed twice, as by `importlib.reload`, rather than two that share a name.

    The source file tells: it defines the name once. Where there is none, as in an interactive session, the
    later definition is a correction of the earlier one.
    """
    old, new = inspect.unwrap(plain(before)), inspect.unwrap(plain(after))
    if not (inspect.isfunction(old) and inspect.isfunction(new)):
        return False
    if describe(old) != describe(new) or "<locals>" in new.__qualname__:
        return False
    try:
        tree = ast.parse(Path(new.__code__.co_filename).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return True
    return sum(name == new.__qualname__ for name in _definitions(tree)) == 1


def _in_class_body(function: Callable[..., Any]) -> bool:
    scope, _, _ = function.__qualname__.rpartition(".")
    return bool(scope) and not scope.endswith("<locals>")


def _definitions(node: ast.AST, scope: str = "") -> Iterator[str]:
    """Qualified names of the functions that a module or class body defines, whatever branch they are in."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield scope + child.name
        elif isinstance(child, ast.ClassDef):
            yield from _definitions(child, f"{scope}{child.name}.")
        else:
            yield from _definitions(child, scope)
