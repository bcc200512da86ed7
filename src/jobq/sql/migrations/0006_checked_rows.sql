-- Brings rows that plain SQL has made into the bounds of the checks, so that all hold: in names '_' stands for what is not allowed,
-- numbers and times go to the nearest bound, keys that are too long to their beginning and a digest.

DO $rows$
DECLARE
    odd constant text := '[^A-Za-z0-9._:/@-]';
    low constant timestamptz := '1970-01-02Z';
    high constant timestamptz := '9998-12-31Z';
BEGIN
    UPDATE {schema}.job SET
        kind = coalesce(nullif(left(regexp_replace(kind, odd, '_', 'g'), 128), ''), '_'),
        queue = coalesce(nullif(left(regexp_replace(queue, odd, '_', 'g'), 128), ''), '_'),
        tenant = coalesce(nullif(left(regexp_replace(tenant, odd, '_', 'g'), 128), ''), '_'),
        priority = greatest(-100, least(priority, 100)),
        started_at = CASE WHEN started_at IS NOT NULL THEN greatest(low, least(started_at, high)) END,
        lease_until = CASE WHEN lease_until IS NOT NULL THEN greatest(low, least(lease_until, high)) END,
        deadline = CASE WHEN deadline IS NOT NULL THEN greatest(low, least(deadline, high)) END,
        cancel_requested_at = CASE WHEN cancel_requested_at IS NOT NULL THEN greatest(low, least(cancel_requested_at, high)) END,
        held_by = CASE WHEN octet_length(held_by) <= 300 THEN nullif(held_by, '') END,
        concurrency_key = nullif(CASE WHEN octet_length(concurrency_key) > 255 THEN left(concurrency_key, 32) || md5(concurrency_key) ELSE concurrency_key END, ''),
        idempotency_key = nullif(CASE WHEN octet_length(idempotency_key) > 255 THEN left(idempotency_key, 32) || md5(idempotency_key) ELSE idempotency_key END, ''),
        unique_key = nullif(CASE WHEN octet_length(unique_key) > 255 THEN left(unique_key, 32) || md5(unique_key) ELSE unique_key END, '')
    WHERE kind ~ odd OR octet_length(kind) NOT BETWEEN 1 AND 128 OR queue ~ odd OR octet_length(queue) NOT BETWEEN 1 AND 128
       OR tenant ~ odd OR octet_length(tenant) NOT BETWEEN 1 AND 128 OR priority NOT BETWEEN -100 AND 100
       OR started_at NOT BETWEEN low AND high OR lease_until NOT BETWEEN low AND high OR deadline NOT BETWEEN low AND high
       OR cancel_requested_at NOT BETWEEN low AND high OR octet_length(held_by) NOT BETWEEN 1 AND 300
       OR octet_length(concurrency_key) NOT BETWEEN 1 AND 255 OR octet_length(idempotency_key) NOT BETWEEN 1 AND 255
       OR octet_length(unique_key) NOT BETWEEN 1 AND 255;
    DELETE FROM {schema}.kind WHERE kind ~ odd OR octet_length(kind) NOT BETWEEN 1 AND 128;
    UPDATE {schema}.kind SET
        queue = CASE WHEN queue !~ odd AND octet_length(queue) BETWEEN 1 AND 128 THEN queue END,
        priority = CASE WHEN priority IS NOT NULL THEN greatest(-100, least(priority, 100)) END,
        timeout = CASE WHEN timeout > 0 AND timeout <= 315360000 THEN timeout END
    WHERE queue ~ odd OR octet_length(queue) NOT BETWEEN 1 AND 128 OR priority NOT BETWEEN -100 AND 100
       OR (timeout > 0 AND timeout <= 315360000) IS FALSE;
    DELETE FROM {schema}.limiter WHERE octet_length(name) NOT BETWEEN 1 AND 255;
END $rows$;

ALTER TABLE {schema}.job
    VALIDATE CONSTRAINT job_kind_check, VALIDATE CONSTRAINT job_queue_check, VALIDATE CONSTRAINT job_tenant_check,
    VALIDATE CONSTRAINT job_priority_check, VALIDATE CONSTRAINT job_started_at_check, VALIDATE CONSTRAINT job_lease_until_check,
    VALIDATE CONSTRAINT job_deadline_check, VALIDATE CONSTRAINT job_cancel_requested_at_check, VALIDATE CONSTRAINT job_held_by_check,
    VALIDATE CONSTRAINT job_concurrency_key_check, VALIDATE CONSTRAINT job_idempotency_key_check, VALIDATE CONSTRAINT job_unique_key_check;
ALTER TABLE {schema}.kind
    VALIDATE CONSTRAINT kind_kind_check, VALIDATE CONSTRAINT kind_queue_check, VALIDATE CONSTRAINT kind_priority_check,
    VALIDATE CONSTRAINT kind_timeout_check;
ALTER TABLE {schema}.limiter VALIDATE CONSTRAINT limiter_name_check;
