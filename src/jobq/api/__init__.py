"""The HTTP API (contract.md, "HTTP")."""

from jobq.api.app import create_app
from jobq.api.serve import serve

__all__ = ["create_app", "serve"]
