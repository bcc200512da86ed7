-- Weights, caps, rates and pauses. docs/fairness.md explains the choices.

CREATE TABLE {schema}.limiter (
    scope         text COLLATE "C" NOT NULL CHECK (scope IN ('tenant', 'queue', 'kind', 'key')),
    name          text COLLATE "C" NOT NULL,
    weight        double precision CHECK (weight > 0 AND weight <= 1000000),
    queue_weights jsonb,
    max_running   integer CHECK (max_running BETWEEN 1 AND 10000),
    max_per_key   integer CHECK (max_per_key BETWEEN 1 AND 10000),
    rate_limit    integer CHECK (rate_limit >= 1),
    rate_period   double precision CHECK (rate_period >= 0.001 AND rate_period <= 315360000),
    rate_burst    integer CHECK (rate_burst >= 1),
    paused        boolean NOT NULL DEFAULT false,
    restricts     boolean GENERATED ALWAYS AS (paused OR max_running IS NOT NULL OR rate_limit IS NOT NULL) STORED,
    version       bigint NOT NULL,
    updated_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (scope, name),
    CHECK (num_nulls(rate_limit, rate_period) IN (0, 2))
);
CREATE INDEX limiter_restricts_idx ON {schema}.limiter (scope, name) WHERE restricts;
CREATE INDEX limiter_version_idx ON {schema}.limiter (version);
COMMENT ON TABLE {schema}.limiter IS 'What an operator set for a tenant, queue, kind or concurrency key: weight, cap, rate, pause. NULL: not set.';
COMMENT ON COLUMN {schema}.limiter.queue_weights IS 'A tenant''s weight in some queues, by queue.';
COMMENT ON COLUMN {schema}.limiter.max_running IS 'Jobs that run at once, over the whole fleet.';
COMMENT ON COLUMN {schema}.limiter.max_per_key IS 'For a kind: the cap of its jobs'' concurrency keys that have none of their own.';
COMMENT ON COLUMN {schema}.limiter.rate_period IS 'Seconds in which rate_limit jobs may start.';
COMMENT ON COLUMN {schema}.limiter.restricts IS 'Whether a claim must ask admit.';
COMMENT ON COLUMN {schema}.limiter.version IS 'limiter_version when it was last set: workers load what is newer than what they know.';

CREATE TABLE {schema}.limiter_version (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    version  bigint NOT NULL
);
COMMENT ON TABLE {schema}.limiter_version IS 'Counts the changes of limiter; its row lock puts them in order.';
INSERT INTO {schema}.limiter_version (version) VALUES (0);

-- Whoever changes limiter, and be it by hand, gives the row the next version and tells the workers.
CREATE FUNCTION {schema}.stamp_limiter() RETURNS trigger LANGUAGE plpgsql AS $function$
DECLARE
    stamp bigint;
BEGIN
    IF TG_OP = 'UPDATE' AND NEW.version > OLD.version THEN
        RETURN NEW;  -- of an INSERT ... ON CONFLICT, which has its stamp
    END IF;
    UPDATE {schema}.limiter_version v SET version = v.version + 1 RETURNING v.version INTO stamp;
    PERFORM pg_notify({channel}, 'l');
    IF TG_OP = 'DELETE' THEN
        RETURN OLD;
    END IF;
    NEW.version := stamp;
    RETURN NEW;
END $function$;
CREATE TRIGGER stamp_limiter BEFORE INSERT OR UPDATE OR DELETE ON {schema}.limiter FOR EACH ROW EXECUTE FUNCTION {schema}.stamp_limiter();

-- Slots, not counters (docs/fairness.md): a claim takes free rows, and the statement that ends the lease frees them.
CREATE TABLE {schema}.cap_slot (
    scope  text COLLATE "C" NOT NULL,
    n      integer NOT NULL,
    lease  bigint,
    job_id bigint,
    PRIMARY KEY (scope, n),
    CHECK (num_nulls(lease, job_id) IN (0, 2))
);
CREATE INDEX cap_slot_job_idx ON {schema}.cap_slot (job_id);
COMMENT ON TABLE {schema}.cap_slot IS 'Slots of caps, by scope (tenant:x, queue:x, kind:x, key:x); a slot is held by a run, or free.';

CREATE TABLE {schema}.rate_bucket (
    scope     text COLLATE "C" PRIMARY KEY,
    tokens    double precision NOT NULL,
    filled_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE {schema}.rate_bucket IS 'Token buckets of rates: tokens there were when last filled.';

CREATE TABLE {schema}.turn (
    held_by text COLLATE "C" PRIMARY KEY,
    tenant  text COLLATE "C" NOT NULL
);
COMMENT ON TABLE {schema}.turn IS 'Whose job held for a kind was put back last: tenants take turns.';

ALTER TABLE {schema}.cap_slot SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE {schema}.rate_bucket SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

ALTER TABLE {schema}.kind ADD COLUMN max_per_key integer CHECK (max_per_key BETWEEN 1 AND 10000);
COMMENT ON COLUMN {schema}.kind.max_per_key IS 'Cap of a concurrency key among jobs of this kind; NULL: 1.';
ALTER TABLE {schema}.worker ADD COLUMN finished_per_second double precision NOT NULL DEFAULT 0;
COMMENT ON COLUMN {schema}.worker.finished_per_second IS 'Runs that ended lately, on average.';
ALTER TABLE {schema}.worker ADD COLUMN run_seconds double precision;
COMMENT ON COLUMN {schema}.worker.run_seconds IS 'Seconds that a run takes, on average lately; NULL: none ended yet.';
ALTER TABLE {schema}.worker ADD COLUMN claim_loop_ok boolean NOT NULL DEFAULT true;
COMMENT ON COLUMN {schema}.worker.claim_loop_ok IS 'Whether its claim loop moved, at the last heartbeat.';

DROP INDEX {schema}.job_held_idx;
CREATE INDEX job_held_idx ON {schema}.job (held_by COLLATE "C", tenant, priority DESC, run_at, id) WHERE held_by IS NOT NULL;
CREATE INDEX job_key_idx ON {schema}.job (concurrency_key, priority DESC, run_at, id)
    WHERE status = 'QUEUED' AND concurrency_key IS NOT NULL;
CREATE INDEX job_held_key_idx ON {schema}.job (held_by COLLATE "C", priority DESC, run_at, id) WHERE held_by LIKE 'key:%';

-- Tokens that a rate gains a second. A rate of l jobs per period fills at 0.97 l and holds 0.02 l beyond its burst: within any period
-- at most l + burst - 1 jobs start, a worker that comes a little late loses nothing, and 0.01 l make up for stamps of rivals
-- that lie a little apart (a token bucket: RFC 2697).
CREATE FUNCTION {schema}.refill(rule {schema}.limiter) RETURNS double precision LANGUAGE sql IMMUTABLE
RETURN 0.97 * rule.rate_limit / rule.rate_period;

-- Tokens in a rate's bucket at a time; a clock that was set back adds none and takes none.
CREATE FUNCTION {schema}.tokens_now(rule {schema}.limiter, bucket {schema}.rate_bucket, at timestamptz DEFAULT clock_timestamp())
RETURNS double precision LANGUAGE sql STABLE
RETURN least(coalesce(rule.rate_burst, 1) + 0.02 * rule.rate_limit,
             bucket.tokens + greatest(0, extract(epoch FROM at - bucket.filled_at)) * {schema}.refill(rule));

-- The cap of a concurrency key for jobs of a kind: the key's own, else what the kind says, else 1.
CREATE FUNCTION {schema}.key_cap(key text, kind text) RETURNS integer LANGUAGE sql STABLE
RETURN coalesce((SELECT l.max_running FROM {schema}.limiter l WHERE l.scope = 'key' AND l.name = key_cap.key),
                (SELECT l.max_per_key FROM {schema}.limiter l WHERE l.scope = 'kind' AND l.name = key_cap.kind),
                (SELECT k.max_per_key FROM {schema}.kind k WHERE k.kind = key_cap.kind), 1);

-- What limits a job: tenant, queue, kind, concurrency key, in the order in which a claim asks.
CREATE FUNCTION {schema}.limits_of(job {schema}.job)
RETURNS TABLE (which text, scope text, rule {schema}.limiter, cap integer) LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT found.which, found.which || ':' || found.name, found.rule,
           CASE found.which WHEN 'key' THEN {schema}.key_cap(job.concurrency_key, job.kind) ELSE (found.rule).max_running END
    FROM (SELECT v.ord, v.which, v.name,
                 (SELECT l FROM {schema}.limiter l WHERE l.scope = v.which AND l.name = v.name AND l.restricts) AS rule
          FROM (VALUES (1, 'tenant', job.tenant), (2, 'queue', job.queue), (3, 'kind', job.kind), (4, 'key', job.concurrency_key))
               AS v(ord, which, name)
          WHERE v.name IS NOT NULL) found
    WHERE (found.rule).scope IS NOT NULL OR found.which = 'key'
    ORDER BY found.ord;
END;

-- Whether a job of this queue, tenant and kind could start: none is paused or at its cap, and a live worker serves the queue.
-- A kind of NULL is not asked.
CREATE FUNCTION {schema}.startable(queue text, tenant text, kind text) RETURNS boolean LANGUAGE plpgsql STABLE AS $function$
BEGIN
    RETURN EXISTS (SELECT FROM {schema}.worker w
                   WHERE w.expires_at > clock_timestamp() AND (w.queues IS NULL OR startable.queue = ANY (w.queues)))
       AND NOT EXISTS (
           SELECT FROM (VALUES ('queue', startable.queue), ('tenant', startable.tenant), ('kind', startable.kind)) AS v(scope, name), LATERAL (
               SELECT l.paused, l.max_running FROM {schema}.limiter l
               WHERE l.scope = v.scope AND l.name = v.name AND l.restricts LIMIT 1) rule
           WHERE rule.paused OR rule.max_running <= (
               SELECT count(*) FROM {schema}.cap_slot s WHERE s.scope = v.scope || ':' || v.name AND s.lease IS NOT NULL));
END $function$;

-- Makes the slots that caps of these scopes lack. In one order, so that rivals who make the same ones never deadlock.
CREATE FUNCTION {schema}.make_slots(scopes text[], caps integer[]) RETURNS void LANGUAGE sql VOLATILE
BEGIN ATOMIC
    INSERT INTO {schema}.cap_slot (scope, n)
    SELECT wanted.scope, missing.n
    FROM (SELECT u.scope, max(u.cap) AS cap FROM unnest(scopes, caps) AS u(scope, cap) GROUP BY u.scope) wanted,
         LATERAL generate_series(0, wanted.cap - 1) AS missing(n)
    WHERE wanted.cap > (SELECT count(*) FROM {schema}.cap_slot s WHERE s.scope = wanted.scope AND s.n < wanted.cap)
      AND (SELECT s.n FROM {schema}.cap_slot s WHERE s.scope = wanted.scope AND s.n = missing.n) IS NULL
    ORDER BY wanted.scope, missing.n
    ON CONFLICT DO NOTHING;
END;

-- Gives slots to runs that hold none although a cap of their tenant, queue or kind counts them: they began before it was set. Their slots
-- lie beyond the cap, like those of runs that it was lowered under. `only_scope` restricts it.
CREATE FUNCTION {schema}.adopt_runs(only_scope text) RETURNS void LANGUAGE plpgsql SET enable_seqscan = off AS $function$
BEGIN
    INSERT INTO {schema}.cap_slot (scope, n, lease, job_id)
    SELECT bare.scope, greatest(bare.cap - 1, (SELECT max(s.n) FROM {schema}.cap_slot s WHERE s.scope = bare.scope))
               + row_number() OVER (PARTITION BY bare.scope ORDER BY bare.id), bare.lease, bare.id
    FROM (SELECT v.which || ':' || v.name AS scope, rule.max_running AS cap, j.id, j.lease
          FROM {schema}.job j, LATERAL (VALUES ('tenant', j.tenant), ('queue', j.queue), ('kind', j.kind)) AS v(which, name), LATERAL (
              SELECT l.max_running FROM {schema}.limiter l
              WHERE l.scope = v.which AND l.name = v.name AND l.restricts AND l.max_running IS NOT NULL LIMIT 1) rule
          WHERE j.status = 'RUNNING' AND (only_scope IS NULL OR only_scope = v.which || ':' || v.name)
            AND NOT EXISTS (SELECT FROM {schema}.cap_slot s WHERE s.job_id = j.id AND s.scope = v.which || ':' || v.name)) bare
    ON CONFLICT DO NOTHING;
END $function$;

-- A free slot of a cap, locked. A cap that was lowered counts the runs in slots beyond it: as many of its last free slots
-- are not to be taken. No rival takes those either, whatever it has seen, so all that run are never more than the cap.
CREATE FUNCTION {schema}.find_slot(scope text, cap integer) RETURNS integer LANGUAGE plpgsql AS $function$
DECLARE
    beyond integer;
    slot   integer;
BEGIN
    SELECT count(*) INTO beyond FROM {schema}.cap_slot s WHERE s.scope = find_slot.scope AND s.n >= cap AND s.lease IS NOT NULL;
    SELECT s.n INTO slot FROM {schema}.cap_slot s
    WHERE s.scope = find_slot.scope AND s.n < cap AND s.lease IS NULL AND s.n <= (
        SELECT last.n FROM {schema}.cap_slot last
        WHERE last.scope = find_slot.scope AND last.n < cap AND last.lease IS NULL ORDER BY last.n DESC OFFSET beyond LIMIT 1)
    ORDER BY s.n LIMIT 1 FOR UPDATE SKIP LOCKED;
    RETURN slot;
END $function$;

-- Asks one limit (of a tenant, queue, kind or key) whether a job may start: the slot it would take, locked, or why not; the bucket of
-- a rate is filled and locked. Nothing here waits: what a rival has in hands counts as taken, and is tried again soon
-- (retry_in, seconds).
CREATE FUNCTION {schema}.ask_limit(which text, scope text, rule {schema}.limiter, cap integer,
                                   OUT reason text, OUT held boolean, OUT retry_in double precision, OUT slot integer)
LANGUAGE plpgsql AS $function$
DECLARE
    -- A job that may not start for its kind or key leaves the claim index, so that no claim walks over it again; one that
    -- waits for its tenant or queue stays, and the worker leaves that alone.
    holds constant boolean := which IN ('kind', 'key');
    taken    integer;
    tokens   double precision;
    asked_at timestamptz;
BEGIN
    held := false;
    IF rule.paused THEN
        reason := which || '_paused'; held := holds;
        RETURN;
    END IF;
    IF cap IS NOT NULL THEN
        slot := {schema}.find_slot(scope, cap);
        IF slot IS NULL THEN
            -- Held only where enough slots are seen taken and stay so until this commits: whoever frees one finds the job held.
            SELECT count(*) INTO taken
            FROM (SELECT FROM {schema}.cap_slot s
                  WHERE holds AND s.scope = ask_limit.scope AND s.lease IS NOT NULL FOR UPDATE SKIP LOCKED) locked;
            reason := which || '_cap'; held := taken >= cap;
            retry_in := CASE WHEN holds AND taken < cap THEN 0.02 END;
            RETURN;
        END IF;
    END IF;
    IF rule.rate_limit IS NOT NULL THEN
        INSERT INTO {schema}.rate_bucket (scope, tokens) SELECT ask_limit.scope, coalesce(rule.rate_burst, 1)
        WHERE NOT EXISTS (SELECT FROM {schema}.rate_bucket b WHERE b.scope = ask_limit.scope) ON CONFLICT DO NOTHING;
        PERFORM FROM {schema}.rate_bucket b WHERE b.scope = ask_limit.scope FOR UPDATE SKIP LOCKED;
        IF FOUND THEN
            asked_at := clock_timestamp();  -- under the lock, so after whoever filled it before
            UPDATE {schema}.rate_bucket b SET tokens = {schema}.tokens_now(rule, b, asked_at), filled_at = asked_at
            WHERE b.scope = ask_limit.scope RETURNING b.tokens INTO tokens;
        END IF;
        IF tokens IS NULL OR tokens < 1 THEN
            reason := which || '_rate'; held := holds AND tokens IS NOT NULL;
            retry_in := coalesce((1 - tokens) / {schema}.refill(rule), 0.005);
        END IF;
    END IF;
END $function$;

-- Whether the free slots of a concurrency key are for other jobs: those that could start and come before this one in the key's
-- order (priority, run_at, id). Others let it pass, as their queue is paused, say; of very many such only the first are looked at.
CREATE FUNCTION {schema}.others_first(key text, cap integer, priority smallint, run_at timestamptz, id bigint)
RETURNS boolean LANGUAGE plpgsql AS $function$
DECLARE
    -- Some may have been admitted just before, by the same claim: they are still QUEUED.
    running constant bigint[] := ARRAY(SELECT s.job_id FROM {schema}.cap_slot s WHERE s.scope = 'key:' || key AND s.job_id IS NOT NULL);
    free    constant integer := cap - cardinality(running);
BEGIN
    RETURN free <= (
        SELECT count(*) FROM (
            SELECT b.id, b.queue, b.tenant, b.kind, b.priority, b.run_at FROM {schema}.job b
            WHERE b.concurrency_key = key AND b.status = 'QUEUED' AND b.id <> ALL (running)
            ORDER BY b.priority DESC, b.run_at, b.id LIMIT free + 20) b
        WHERE (-b.priority, b.run_at, b.id) < (-others_first.priority, others_first.run_at, others_first.id) AND b.run_at <= now()
          AND {schema}.startable(b.queue, b.tenant, b.kind));
END $function$;

-- Holds what lies behind a job that was just held, in its lane and for the same: a flood leaves the claim index in large bites. IS TRUE
-- keeps the planner from reading all of that index for it, where statistics say that it is empty.
CREATE FUNCTION {schema}.hold_flood(met bigint, reason text) RETURNS void LANGUAGE sql VOLATILE SET enable_seqscan = off
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
            WHERE f.id = met AND behind.kind = f.kind AND (reason LIKE 'kind:%' OR behind.concurrency_key = f.concurrency_key)))
        FOR NO KEY UPDATE SKIP LOCKED));
END;

-- Which of these jobs, locked by a claim, may not start now, and why. The others hold their slots under the claim's lease and have
-- taken their tokens.
CREATE FUNCTION {schema}.admit(new_lease bigint, candidates bigint[])
RETURNS TABLE (blocked_id bigint, reason text, blocked_by text, held boolean, retry_in double precision)
LANGUAGE plpgsql AS $function$
DECLARE
    c      record;
    lim    record;
    known  jsonb := '{{}}';  -- scope -> why it let an earlier job not pass
    slot   integer;
    capped text[];  -- scopes that let the job pass, with the slot found there
    slots  integer[];
    rated  text[];
    vain   boolean := true;  -- whether none of them starts
    met    bigint;  -- held last, for what holds others behind it as well
    met_by text;
BEGIN
    PERFORM {schema}.make_slots(array_agg(l.scope), array_agg(l.cap))
    FROM {schema}.job j, LATERAL {schema}.limits_of(j) l WHERE j.id = ANY (candidates) AND l.cap IS NOT NULL;
    FOR c IN
        SELECT j.id, j.concurrency_key, j.priority, j.run_at FROM unnest(candidates) WITH ORDINALITY AS u(id, ord) JOIN {schema}.job j ON j.id = u.id
        WHERE j.id = ANY (candidates) ORDER BY u.ord
    LOOP
        reason := NULL; capped := '{{}}'; slots := '{{}}'; rated := '{{}}';
        FOR lim IN SELECT l.which, l.scope, l.rule, l.cap FROM {schema}.job j, LATERAL {schema}.limits_of(j) l WHERE j.id = c.id LOOP
            IF known ? lim.scope THEN
                SELECT k.reason, k.held, k.retry_in INTO reason, held, retry_in
                FROM jsonb_to_record(known -> lim.scope) AS k(reason text, held boolean, retry_in double precision);
                EXIT;
            END IF;
            SELECT a.reason, a.held, a.retry_in, a.slot INTO reason, held, retry_in, slot
            FROM {schema}.ask_limit(lim.which, lim.scope, lim.rule, lim.cap) a;
            IF reason IS NOT NULL THEN
                known := known || jsonb_build_object(lim.scope, jsonb_build_object('reason', reason, 'held', held, 'retry_in', retry_in));
                EXIT;
            ELSIF lim.which = 'key' AND {schema}.others_first(c.concurrency_key, lim.cap, c.priority, c.run_at, c.id) THEN
                reason := 'key_turn'; held := true;  -- which says nothing of the key's other jobs
                EXIT;
            END IF;
            IF lim.cap IS NOT NULL THEN
                capped := capped || lim.scope; slots := slots || slot;
            END IF;
            IF (lim.rule).rate_limit IS NOT NULL THEN
                rated := rated || lim.scope;
            END IF;
        END LOOP;
        IF reason IS NULL THEN
            vain := false;
            FOR i IN 1 .. cardinality(capped) LOOP
                UPDATE {schema}.cap_slot s SET lease = new_lease, job_id = c.id WHERE s.scope = capped[i] AND s.n = slots[i];
            END LOOP;
            UPDATE {schema}.rate_bucket b SET tokens = b.tokens - 1 WHERE b.scope = ANY (rated);
        ELSE
            UPDATE {schema}.job j SET held_by = lim.scope WHERE j.id = c.id AND held;
            IF held AND reason <> 'key_turn' THEN
                met := c.id; met_by := lim.scope;
            END IF;
            blocked_id := c.id; blocked_by := lim.scope;
            RETURN NEXT;
        END IF;
    END LOOP;
    IF vain AND met IS NOT NULL THEN
        PERFORM {schema}.hold_flood(met, met_by);
    END IF;
END $function$;

-- Puts up to `room` jobs that are held for a reason back into the claim index and announces them: of a key in its order, of a kind
-- tenant by tenant, beginning after one. One that something else keeps from starting (its tenant is paused, say) is put back
-- as well and takes up no room. Returns how many that could start, whose came last, and whether more may be held.
CREATE FUNCTION {schema}.readmit(reason text, room integer, after_tenant text, OUT moved integer, OUT last_tenant text, OUT more boolean)
LANGUAGE plpgsql AS $function$
DECLARE
    of_key constant boolean := reason LIKE 'key:%';
    next   record;
    lanes  text[] := '{{}}';
    dues   timestamptz[] := '{{}}';
BEGIN
    moved := 0;
    last_tenant := after_tenant;
    WHILE moved < room AND cardinality(lanes) < room + 100 LOOP
        IF of_key THEN
            SELECT j.id, j.queue, j.tenant, j.kind, j.priority, j.run_at INTO next FROM {schema}.job j
            WHERE j.held_by = reason COLLATE "C" AND j.held_by LIKE 'key:%'
            ORDER BY j.priority DESC, j.run_at, j.id LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED;
        ELSE
            SELECT j.id, j.queue, j.tenant, j.kind, j.priority, j.run_at INTO next FROM {schema}.job j
            WHERE j.held_by = reason COLLATE "C" AND j.tenant > after_tenant
            ORDER BY j.tenant, j.priority DESC, j.run_at, j.id LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED;
        END IF;
        IF next.id IS NOT NULL THEN
            UPDATE {schema}.job j SET held_by = NULL WHERE j.id = next.id;
            moved := moved + {schema}.startable(next.queue, next.tenant, CASE WHEN of_key THEN next.kind END)::integer;
            last_tenant := next.tenant; after_tenant := next.tenant;
            lanes := lanes || {schema}.lane_token(next.queue, next.tenant, next.priority);
            dues := dues || next.run_at;
        ELSE
            EXIT WHEN of_key OR after_tenant = '';
            after_tenant := '';
        END IF;
    END LOOP;
    more := moved >= room OR cardinality(lanes) >= room + 100;
    PERFORM {schema}.announce(lanes, dues, dues);
END $function$;

-- Frees what slots these runs hold, as the last act of the statement that ends their leases. What waits for a tenant's or queue's slot
-- is woken; what is held for a kind's or key's is put back. Volatile, so each query here sees what rivals committed while
-- this waited for the slot: a claim that found it taken has held its jobs by then.
CREATE FUNCTION {schema}.free_slots(ids bigint[], leases bigint[], tenants text[]) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $function$
DECLARE
    freed record;
BEGIN
    FOR freed IN
        WITH mine AS (
            UPDATE {schema}.cap_slot s SET lease = NULL, job_id = NULL
            FROM unnest(ids, leases, tenants) AS run(id, lease, tenant)
            WHERE s.job_id = ANY (ids) AND s.job_id = run.id AND s.lease = run.lease
            RETURNING s.scope, run.tenant
        )
        SELECT scope, count(*)::integer AS slots, max(tenant) AS tenant FROM mine GROUP BY scope ORDER BY scope
    LOOP
        IF freed.scope LIKE 'kind:%' OR freed.scope LIKE 'key:%' THEN
            PERFORM {schema}.readmit(freed.scope, freed.slots, freed.tenant);
        ELSE
            PERFORM pg_notify({channel}, 'f ' || left(md5(freed.scope), 16));
        END IF;
    END LOOP;
END $function$;

-- Looks through the reasons for which jobs are held, after one in order and up to `most` of them: where the reason is gone, or slots
-- or tokens are there, puts jobs back, at most 500 a reason. One caller at a time. Comes back with the reason reached (NULL: all
-- were seen), how many jobs that could start were put back, and seconds until a rate has its next token.
CREATE FUNCTION {schema}.review_held(after text, most integer, OUT reached text, OUT moved integer, OUT next_in double precision)
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
        SELECT j.id, j.held_by INTO head FROM {schema}.job j WHERE j.held_by > reached COLLATE "C" ORDER BY j.held_by COLLATE "C", j.tenant LIMIT 1;
        reached := head.held_by;
        EXIT WHEN reached IS NULL;
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
