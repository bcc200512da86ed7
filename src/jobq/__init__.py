"""jobq: a multi-tenant, fair job queue and worker pool for Python on PostgreSQL."""

__version__ = "0.1.0"
