-- What a runtime role needs: use, no ownership.
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT SELECT, INSERT, UPDATE, DELETE ON {schema}.job, {schema}.job_archive, {schema}.job_archive_done, {schema}.job_archive_dead,
    {schema}.key, {schema}.kind, {schema}.worker, {schema}.limiter, {schema}.limiter_version, {schema}.cap_slot,
    {schema}.rate_bucket, {schema}.turn TO {role};
GRANT SELECT ON {schema}.jobs, {schema}.migration, {schema}.compatibility TO {role};
GRANT USAGE ON SEQUENCE {schema}.job_id_seq TO {role};
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} TO {role};
