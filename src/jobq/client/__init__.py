"""The client: `JobQ`, typed handlers, and enqueuing in our own transaction or in the caller's."""

from jobq.client.app import JobQ
from jobq.client.function import Enqueuer, JobFunction
from jobq.client.options import EnqueueOptions, JobOptions
from jobq.client.record import JobRecord

__all__ = ["EnqueueOptions", "Enqueuer", "JobFunction", "JobOptions", "JobQ", "JobRecord"]
