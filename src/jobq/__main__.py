"""`python -m jobq` is `jobq`."""

from jobq.cli import app

app(prog_name="jobq")
