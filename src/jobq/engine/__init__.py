"""The worker engine: claims jobs fairly, runs them under fenced leases, records how they ended."""
