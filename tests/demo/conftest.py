"""Fixtures of the demo's tests."""

from tests.cli.conftest import start

__all__ = ["start"]
