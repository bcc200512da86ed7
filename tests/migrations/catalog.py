"""What a schema consists of, as the catalogs tell: all but the archive's leaf partitions and the rows."""

from __future__ import annotations

from jobq.db import Conn

_QUERIES = {
    "relations": """
SELECT c.relname, c.relkind, c.relreplident, c.reloptions::text, c.relacl::text, obj_description(c.oid, 'pg_class'),
       pg_get_partkeydef(c.oid), pg_get_expr(c.relpartbound, c.oid),
       CASE WHEN c.relkind = 'v' THEN pg_get_viewdef(c.oid) END,
       CASE WHEN c.relkind IN ('i', 'I') THEN pg_get_indexdef(c.oid) END
FROM pg_class c JOIN wanted USING (oid) ORDER BY c.relname""",
    "columns": """
SELECT c.relname, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity, a.attgenerated,
       a.attcollation::regcollation::text, a.attstorage, a.attoptions::text, pg_get_expr(d.adbin, d.adrelid),
       col_description(c.oid, a.attnum)
FROM pg_attribute a JOIN wanted w ON w.oid = a.attrelid JOIN pg_class c ON c.oid = w.oid
LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attnum > 0 AND NOT a.attisdropped ORDER BY c.relname, a.attnum""",
    "constraints": """
SELECT c.relname, k.conname, k.contype, pg_get_constraintdef(k.oid)
FROM pg_constraint k JOIN wanted w ON w.oid = k.conrelid JOIN pg_class c ON c.oid = w.oid ORDER BY c.relname, k.conname""",
    "functions": """
SELECT p.proname, pg_get_functiondef(p.oid), p.proacl::text, obj_description(p.oid, 'pg_proc')
FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = %(schema)s ORDER BY p.proname, 2""",
    "sequences": """
SELECT sequencename, data_type::text, start_value, increment_by, max_value, cycle
FROM pg_sequences WHERE schemaname = %(schema)s ORDER BY 1""",
    "triggers": """
SELECT c.relname, pg_get_triggerdef(t.oid) FROM pg_trigger t JOIN wanted w ON w.oid = t.tgrelid
JOIN pg_class c ON c.oid = w.oid ORDER BY 1, 2""",
    "types": """
SELECT t.typname, t.typtype FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace
WHERE n.nspname = %(schema)s AND t.typrelid = 0 AND t.typelem = 0 ORDER BY 1""",
}
#: Relations of the schema that are no leaf of the archive, nor an index of one.
_WANTED = """
WITH wanted AS (
    SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = %(schema)s AND c.relkind <> 't' AND c.relname !~ '_[0-9]{8}(_|$)'
)"""


def describe(conn: Conn, schema: str = "jobq") -> dict[str, list[tuple[object, ...]]]:
    """The catalogs' rows by kind of object."""
    conn.execute("SELECT set_config('search_path', '', false)")
    return {
        name: conn.execute((_WANTED + query).encode(), {"schema": schema}).fetchall()
        for name, query in _QUERIES.items()
    }


def owned_by(conn: Conn, schema: str) -> list[str]:
    """Names of everything in a schema: relations, functions and types."""
    rows = conn.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = %(schema)s::regnamespace"
        " UNION SELECT proname FROM pg_proc WHERE pronamespace = %(schema)s::regnamespace"
        " UNION SELECT typname FROM pg_type WHERE typnamespace = %(schema)s::regnamespace",
        {"schema": schema},
    )
    return [str(name) for (name,) in rows]
