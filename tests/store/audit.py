"""An audit trigger as invariant checker: who took a job out of which finished status."""

from __future__ import annotations

from tests.store.support import STORE

from jobq.db import Conn

_INSTALL = """
CREATE TABLE public.audit (
    seq bigint GENERATED ALWAYS AS IDENTITY, id bigint, happening text, status text, statement text
);
CREATE FUNCTION public.note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO public.audit (id, happening, status, statement)
    VALUES (OLD.id, TG_OP, OLD.status, current_query());
    RETURN NULL;
END $$;
CREATE TRIGGER note AFTER UPDATE OR DELETE ON jobq.job_archive FOR EACH ROW EXECUTE FUNCTION public.note();
"""


def install(conn: Conn) -> None:
    """Start to write down what happens to finished jobs."""
    conn.execute(_INSTALL)


def check(conn: Conn) -> int:
    """A finished job is only taken up by retry, or dismissed by cancel; returns how often that happened."""
    head = {name: STORE.statements[name].decode().splitlines()[0] for name in ("retry", "cancel")}
    allowed = {
        head["retry"]: {"DEAD", "FAILED", "CANCELLED"},
        head["cancel"]: {"DEAD", "FAILED"},
    }
    rows = conn.execute(
        "SELECT id, happening, status, statement FROM public.audit ORDER BY seq"
    ).fetchall()
    for id_, happening, status, statement in rows:
        assert status in allowed.get(statement.splitlines()[0], ()), (
            id_,
            happening,
            status,
            statement,
        )
    return len(rows)
