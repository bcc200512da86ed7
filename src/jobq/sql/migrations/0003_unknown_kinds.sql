-- Jobs of kinds that no live worker knows wait without using attempts.

COMMENT ON COLUMN {schema}.job.held_by IS 'Why it may not be claimed (kind:x, key:y, unknown_kind:x in queue), or NULL.';

-- What a job is held by whose kind no live worker of its queue knows; a worker that leaves a kind out of its claims names it so, too.
CREATE FUNCTION {schema}.unknown_kind(kind text, queue text) RETURNS text LANGUAGE sql IMMUTABLE
RETURN 'unknown_kind:' || left(kind, 128) || ' in ' || left(queue, 128);

-- Whether a live worker that serves a queue has a handler for a kind and still takes on jobs.
CREATE FUNCTION {schema}.knows_kind(kind text, queue text) RETURNS boolean LANGUAGE sql STABLE
RETURN EXISTS (SELECT FROM {schema}.worker w
               WHERE w.expires_at > clock_timestamp() AND NOT w.draining AND knows_kind.kind = ANY (w.kinds)
                 AND (w.queues IS NULL OR knows_kind.queue = ANY (w.queues)));

-- Whether a job of this queue, tenant and kind could start: none is paused or at its cap, and a live worker serves the queue and knows
-- the kind. A kind of NULL is not asked.
CREATE OR REPLACE FUNCTION {schema}.startable(queue text, tenant text, kind text) RETURNS boolean LANGUAGE plpgsql STABLE AS $function$
BEGIN
    RETURN EXISTS (SELECT FROM {schema}.worker w
                   WHERE w.expires_at > clock_timestamp() AND (w.queues IS NULL OR startable.queue = ANY (w.queues))
                     AND (startable.kind IS NULL OR startable.kind = ANY (w.kinds)))
       AND NOT EXISTS (
           SELECT FROM (VALUES ('queue', startable.queue), ('tenant', startable.tenant), ('kind', startable.kind)) AS v(scope, name), LATERAL (
               SELECT l.paused, l.max_running FROM {schema}.limiter l
               WHERE l.scope = v.scope AND l.name = v.name AND l.restricts LIMIT 1) rule
           WHERE rule.paused OR rule.max_running <= (
               SELECT count(*) FROM {schema}.cap_slot s WHERE s.scope = v.scope || ':' || v.name AND s.lease IS NOT NULL));
END $function$;

-- Holds what lies behind a job that was just held, in its lane and for the same: a flood leaves the claim index in large bites. IS TRUE
-- keeps the planner from reading all of that index for it, where statistics say that it is empty.
CREATE OR REPLACE FUNCTION {schema}.hold_flood(met bigint, reason text) RETURNS void LANGUAGE sql VOLATILE SET enable_seqscan = off
BEGIN ATOMIC
    UPDATE {schema}.job j SET held_by = reason
    WHERE j.id = ANY (ARRAY(
        SELECT b.id FROM {schema}.job b
        WHERE (b.status = 'QUEUED' AND b.held_by IS NULL) IS TRUE AND b.id = ANY (ARRAY(
            SELECT behind.id FROM {schema}.job f, LATERAL (
                SELECT n.id, n.kind, n.concurrency_key FROM {schema}.job n
                WHERE n.status = 'QUEUED' AND n.held_by IS NULL AND n.queue = f.queue AND n.tenant = f.tenant
                  AND n.priority = f.priority AND (n.run_at, n.id) > (f.run_at, f.id)
                ORDER BY n.run_at, n.id LIMIT 500) behind
            WHERE f.id = met AND behind.kind = f.kind AND (reason NOT LIKE 'key:%' OR behind.concurrency_key = f.concurrency_key)))
        FOR NO KEY UPDATE SKIP LOCKED));
END;

-- Refuses jobs, locked by a claim, whose kinds its worker does not know: they use no attempt. Where no other live worker of their queue
-- knows the kind they are held; what lies behind them too, where the claim met nothing else. Where one does they stay, and
-- their lanes are announced, since that worker may have passed over them while they were locked.
CREATE FUNCTION {schema}.refuse_kinds(candidates bigint[], nothing_else boolean)
RETURNS TABLE (blocked_id bigint, reason text, blocked_by text, held boolean) LANGUAGE plpgsql AS $function$
DECLARE
    met record;
BEGIN
    reason := 'unknown_kind';
    FOR met IN
        SELECT j.queue, j.kind, j.tenant, j.priority, array_agg(j.id) AS ids, (array_agg(j.id ORDER BY j.run_at DESC, j.id DESC))[1] AS last,
               min(j.run_at) AS first_due, max(j.run_at) AS last_due
        FROM {schema}.job j WHERE j.id = ANY (candidates) GROUP BY j.queue, j.kind, j.tenant, j.priority
    LOOP
        blocked_by := {schema}.unknown_kind(met.kind, met.queue);
        held := NOT {schema}.knows_kind(met.kind, met.queue);
        IF held THEN
            UPDATE {schema}.job j SET held_by = blocked_by WHERE j.id = ANY (met.ids);
        ELSE
            PERFORM {schema}.announce(ARRAY[{schema}.lane_token(met.queue, met.tenant, met.priority)], ARRAY[met.first_due], ARRAY[met.last_due]);
        END IF;
        IF held AND nothing_else THEN
            PERFORM {schema}.hold_flood(met.last, blocked_by);
        END IF;
        RETURN QUERY SELECT u.id, refuse_kinds.reason, refuse_kinds.blocked_by, refuse_kinds.held FROM unnest(met.ids) AS u(id);
    END LOOP;
END $function$;

-- Looks through the reasons for which jobs are held, after one in order and up to `most` of them: where the reason is gone, or slots
-- or tokens are there, puts jobs back, at most 500 a reason. One caller at a time. Comes back with the reason reached (NULL: all
-- were seen), how many jobs that could start were put back, and seconds until a rate has its next token.
CREATE OR REPLACE FUNCTION {schema}.review_held(after text, most integer, OUT reached text, OUT moved integer, OUT next_in double precision)
LANGUAGE plpgsql AS $function$
DECLARE
    previous text;
    head     record;
    lim      record;
    room     integer;
    tokens   double precision;
    back     record;
BEGIN
    reached := after;
    moved := 0;
    IF NOT pg_try_advisory_xact_lock(hashtextextended({schema_text} || '.review_held', 0)) THEN
        reached := NULL;
        RETURN;
    END IF;
    FOR i IN 1 .. most LOOP
        previous := reached;
        SELECT j.id, j.held_by, j.kind, j.queue INTO head FROM {schema}.job j WHERE j.held_by > reached COLLATE "C" ORDER BY j.held_by COLLATE "C", j.tenant LIMIT 1;
        reached := head.held_by;
        EXIT WHEN reached IS NULL;
        CONTINUE WHEN reached LIKE 'unknown_kind:%' AND NOT {schema}.knows_kind(head.kind, head.queue);
        SELECT l.rule, l.cap INTO lim FROM {schema}.job j, LATERAL {schema}.limits_of(j) l WHERE j.id = head.id AND l.scope = reached;
        CONTINUE WHEN (lim.rule).paused;
        room := 500;
        IF lim.cap IS NOT NULL THEN
            room := least(room, lim.cap - (SELECT count(*) FROM {schema}.cap_slot s WHERE s.scope = reached AND s.lease IS NOT NULL));
        END IF;
        IF (lim.rule).rate_limit IS NOT NULL THEN
            -- A clock that was set back: the bucket fills from now on. No claim does that while all its jobs are held.
            UPDATE {schema}.rate_bucket b SET filled_at = clock_timestamp() WHERE b.scope = (
                SELECT f.scope FROM {schema}.rate_bucket f
                WHERE f.scope = reached AND f.filled_at > clock_timestamp() FOR UPDATE SKIP LOCKED);
            SELECT {schema}.tokens_now(lim.rule, b) INTO tokens FROM {schema}.rate_bucket b WHERE b.scope = reached;
            IF room > 0 THEN
                next_in := least(next_in, (floor(tokens) + 1 - tokens) / {schema}.refill(lim.rule));
            END IF;
            room := least(room, floor(tokens));
        END IF;
        CONTINUE WHEN room < 1;
        SELECT r.moved, r.last_tenant, r.more INTO back
        FROM {schema}.readmit(reached, room, coalesce((SELECT t.tenant FROM {schema}.turn t WHERE t.held_by = reached), '')) r;
        moved := moved + back.moved;
        IF reached LIKE 'kind:%' THEN
            INSERT INTO {schema}.turn (held_by, tenant) VALUES (reached, back.last_tenant)
            ON CONFLICT (held_by) DO UPDATE SET tenant = EXCLUDED.tenant;
        END IF;
        IF back.more AND (back.moved < room OR (lim.cap IS NULL AND (lim.rule).rate_limit IS NULL)) THEN
            reached := previous;  -- nothing limits them any more, or of so many none could start
            EXIT;
        END IF;
    END LOOP;
END $function$;
