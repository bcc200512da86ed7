-- What rows may hold is checked where they are written, be it by plain SQL. Not yet of the rows that are there: the next
-- migration does that, so that nobody waits for a scan.

ALTER TABLE {schema}.job
    ADD CONSTRAINT job_kind_check CHECK (kind ~ '^[A-Za-z0-9._:/@-]+$' AND octet_length(kind) <= 128) NOT VALID,
    ADD CONSTRAINT job_queue_check CHECK (queue ~ '^[A-Za-z0-9._:/@-]+$' AND octet_length(queue) <= 128) NOT VALID,
    ADD CONSTRAINT job_tenant_check CHECK (tenant ~ '^[A-Za-z0-9._:/@-]+$' AND octet_length(tenant) <= 128) NOT VALID,
    ADD CONSTRAINT job_priority_check CHECK (priority BETWEEN -100 AND 100) NOT VALID,
    ADD CONSTRAINT job_started_at_check CHECK (started_at > '1970-01-01Z' AND started_at < '9999-01-01Z') NOT VALID,
    ADD CONSTRAINT job_lease_until_check CHECK (lease_until > '1970-01-01Z' AND lease_until < '9999-01-01Z') NOT VALID,
    ADD CONSTRAINT job_deadline_check CHECK (deadline > '1970-01-01Z' AND deadline < '9999-01-01Z') NOT VALID,
    ADD CONSTRAINT job_cancel_requested_at_check
        CHECK (cancel_requested_at > '1970-01-01Z' AND cancel_requested_at < '9999-01-01Z') NOT VALID,
    ADD CONSTRAINT job_held_by_check CHECK (octet_length(held_by) BETWEEN 1 AND 300) NOT VALID,
    ADD CONSTRAINT job_concurrency_key_check CHECK (octet_length(concurrency_key) BETWEEN 1 AND 255) NOT VALID,
    ADD CONSTRAINT job_idempotency_key_check CHECK (octet_length(idempotency_key) BETWEEN 1 AND 255) NOT VALID,
    ADD CONSTRAINT job_unique_key_check CHECK (octet_length(unique_key) BETWEEN 1 AND 255) NOT VALID;

ALTER TABLE {schema}.kind
    ADD CONSTRAINT kind_kind_check CHECK (kind ~ '^[A-Za-z0-9._:/@-]+$' AND octet_length(kind) <= 128) NOT VALID,
    ADD CONSTRAINT kind_queue_check CHECK (queue ~ '^[A-Za-z0-9._:/@-]+$' AND octet_length(queue) <= 128) NOT VALID,
    ADD CONSTRAINT kind_priority_check CHECK (priority BETWEEN -100 AND 100) NOT VALID,
    ADD CONSTRAINT kind_timeout_check CHECK (timeout > 0 AND timeout <= 315360000) NOT VALID;

ALTER TABLE {schema}.limiter
    ADD CONSTRAINT limiter_name_check CHECK (octet_length(name) BETWEEN 1 AND 255) NOT VALID;
