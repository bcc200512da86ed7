"""The numbers of the one worker beside an API, as in `jobq dev`, shown with the API's own.

Elsewhere Prometheus scrapes each worker itself (JOBQ_WORKER_HTTP_ADDR).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import httpx
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

#: Seconds that a scrape waits for the worker.
PATIENCE = 1.0


class WorkerBeside(Collector):
    """Shows those of a worker's metrics that the API does not have itself.

    Args:
        url: of the worker's /metrics.
        own: the API's metrics.
    """

    def __init__(self, url: str, own: Iterable[Metric]) -> None:
        self._url = url
        self._own = {family.name for family in own}
        self._families: list[Metric] = []
        # A line for each scrape would drown what a developer looks for.
        logging.getLogger("httpx").setLevel(logging.WARNING)

    async def refresh(self) -> None:
        """Ask the worker; one that does not answer has no numbers."""
        self._families = []
        try:
            async with httpx.AsyncClient(trust_env=False, verify=False, timeout=PATIENCE) as client:  # noqa: S501 - plain HTTP on this machine
                answer = await client.get(self._url)
        except httpx.HTTPError:
            return
        if answer.status_code == 200:
            found = text_string_to_metric_families(answer.text)
            self._families = [family for family in found if family.name not in self._own]

    def describe(self) -> Iterable[Metric]:
        """Names for the registry; none are known before the worker is asked."""
        return []

    def collect(self) -> Iterable[Metric]:
        """What the worker said last."""
        return self._families
