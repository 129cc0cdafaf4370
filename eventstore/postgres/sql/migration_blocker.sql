-- Which session has used tables of the store for longest in one transaction, since how many seconds;
-- where `snapshots` says so, also one that only keeps a snapshot open. A vacuum gives way by itself.
SELECT format('session %%s of %%s (%%s)', pid, coalesce(usename, backend_type),
              coalesce(nullif(application_name, ''), 'no name')),
       extract(epoch FROM clock_timestamp() - xact_start)::float8, pid
    FROM pg_stat_activity AS session
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
      AND backend_type <> 'autovacuum worker'
      AND (%(snapshots)s AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
           OR EXISTS (SELECT FROM pg_locks JOIN pg_class ON pg_class.oid = pg_locks.relation
                          WHERE pg_locks.pid = session.pid AND pg_locks.granted
                            AND pg_locks.database = session.datid
                            AND pg_class.relnamespace = to_regnamespace('es')))
    ORDER BY xact_start LIMIT 1
