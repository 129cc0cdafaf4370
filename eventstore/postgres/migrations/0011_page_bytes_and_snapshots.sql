-- Pages end after so many bytes, those that are read from the archive too; snapshots that stay open
-- are seen; a store that lost events says so to es.append too.

ALTER TABLE es.archived ADD COLUMN bytes integer;
COMMENT ON COLUMN es.archived.bytes IS 'Size of data and metadata; null: archived before that was kept';

-- Who has kept a snapshot of this database open for longest, since how many seconds, and the statement
-- that ends it: while it is open no superseded version of a row can be removed. Runs with the rights of
-- whoever migrated, for times of other users' sessions are not everybody's to see.
CREATE FUNCTION es.oldest_snapshot(OUT holder text, OUT age_s double precision, OUT ended_by text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT open.holder, extract(epoch FROM clock_timestamp() - open.since), open.ended_by FROM (
        SELECT format('session %s of %s (%s)', pid, coalesce(usename, backend_type),
                      coalesce(nullif(application_name, ''), 'no name')),
               xact_start, format('SELECT pg_terminate_backend(%s)', pid)
            FROM pg_stat_activity
            WHERE datname = current_database() AND pid <> pg_backend_pid()
              AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
              AND backend_type <> 'autovacuum worker'
        UNION ALL
        SELECT format('prepared transaction %s', gid), prepared, format('ROLLBACK PREPARED %L', gid)
            FROM pg_prepared_xacts WHERE database = current_database()
    ) AS open (holder, since, ended_by) WHERE open.since IS NOT NULL ORDER BY open.since LIMIT 1
$$;
REVOKE ALL ON FUNCTION es.oldest_snapshot FROM PUBLIC;
GRANT EXECUTE ON FUNCTION es.oldest_snapshot TO penstock_service;

ALTER TABLE es.store ADD COLUMN known_head bigint;
COMMENT ON COLUMN es.store.known_head IS 'Set by a service that finds the head below it: events were lost';
GRANT UPDATE (known_head) ON es.store TO penstock_service;

CREATE OR REPLACE FUNCTION es.append(stream text, expected text, events jsonb)
RETURNS TABLE (first_version bigint, last_version bigint, first_position bigint,
               last_position bigint, repeated boolean)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' AS $$
#variable_conflict use_column
DECLARE
    into_stream CONSTANT text := stream;
    into_category CONSTANT text :=
        substring(stream FROM '^([a-z][a-z0-9_]{0,62})-[^[:space:][:cntrl:]/]+$');
    total CONSTANT integer := jsonb_array_length(events);
    head record;
    actual bigint;
    known integer;
    tracing CONSTANT text[] := '{traceparent,correlation_id,causation_id}';
BEGIN
    IF into_category IS NULL OR length(into_stream) > 255 THEN
        RAISE EXCEPTION '% is not a stream name', quote_nullable(into_stream)
            USING ERRCODE = 'ES004';
    END IF;
    IF right(into_stream, 9) = '$metadata' THEN
        RAISE EXCEPTION 'stream % records the life of another stream', into_stream
            USING ERRCODE = 'ES004';
    END IF;
    PERFORM es.check_given(into_category, events);

    PERFORM pg_advisory_xact_lock(7305801002);
    PERFORM es.limit_setting('idle_in_transaction_session_timeout', interval '2 seconds');
    PERFORM es.limit_setting('statement_timeout', interval '2 seconds');
    IF current_setting('server_version_num')::integer >= 170000 THEN
        PERFORM es.limit_setting('transaction_timeout', interval '2 seconds');
    END IF;
    IF current_setting('synchronous_commit') NOT IN ('on', 'remote_apply') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    IF EXISTS (SELECT FROM es.store WHERE known_head IS NOT NULL) THEN
        RAISE EXCEPTION 'the store lost events that it had: it was restored, or another server took its place'
            USING ERRCODE = 'ES005',
                  HINT = 'Give it a new id: penstock store renew-id. Then restart its services.',
                  DETAIL = (SELECT jsonb_build_object('head', position, 'known', known_head)::text
                                FROM es.store, es.counter);
    END IF;
    SELECT position, greatest(clock_timestamp(), recorded_at) AS recorded_at INTO head
        FROM es.counter;

    SELECT count(*), min(position) INTO known, first_position
        FROM es.recorded WHERE id IN (SELECT id FROM es.given_events(append.events));
    IF known > 0 THEN
        IF known < total OR EXISTS (
            SELECT FROM es.given_events(append.events) AS given JOIN es.events USING (id)
                WHERE events.stream <> into_stream
                    OR events.position <> append.first_position + given.place - 1
                    OR (events.type, events.data, events.tags)
                        IS DISTINCT FROM (given.type, given.data, given.tags)
                    OR events.metadata - tracing <> given.metadata - tracing
                    OR events.occurred_at <> given.occurred_at)
            OR EXISTS (
            SELECT FROM es.given_events(append.events) AS given JOIN es.archived AS kept USING (id)
                WHERE kept.stream <> into_stream
                    OR kept.position <> append.first_position + given.place - 1
                    OR kept.occurred_at <> given.occurred_at
                    OR kept.content <>
                        es.content_of(given.type, given.data, given.tags, given.metadata)) THEN
            RAISE EXCEPTION 'an event id is used already at position %', first_position
                USING ERRCODE = 'ES002',
                      DETAIL = jsonb_build_object('position', first_position)::text;
        END IF;
        RETURN QUERY SELECT min(version), max(version), min(position), max(position), true
            FROM es.recorded WHERE id IN (SELECT id FROM es.given_events(append.events));
        RETURN;
    END IF;

    actual := es.check_expected(into_stream, append.expected);
    BEGIN
        IF NOT EXISTS (SELECT FROM es.categories WHERE category = into_category) THEN
            IF (SELECT count(*) >= 500 FROM es.categories) THEN
                RAISE EXCEPTION 'category % would be one too many, at most 500 are allowed',
                    into_category USING ERRCODE = 'ES004';
            END IF;
            INSERT INTO es.categories (category) VALUES (into_category);
        END IF;
        INSERT INTO es.events (position, store_id, id, stream, version, category, type, schema_id,
                               data, metadata, tags, occurred_at, recorded_at)
            SELECT head.position + place, store_id, id, into_stream, actual + place, into_category,
                   type, schema_id, data, metadata, tags, coalesce(occurred_at, head.recorded_at),
                   head.recorded_at
                FROM es.given_events(append.events), es.store;
    EXCEPTION WHEN unique_violation THEN
        -- A snapshot of the whole transaction does not see the last events.
        RAISE EXCEPTION 'somebody appended after this transaction had begun' USING ERRCODE = '40001';
    END;
    INSERT INTO es.tags (tag, position, category, type)
        SELECT DISTINCT tag, head.position + place, into_category, type
            FROM es.given_events(append.events), unnest(tags) AS tag;
    INSERT INTO es.streams (stream, category, version)
        VALUES (into_stream, into_category, actual + total)
        ON CONFLICT (stream) DO UPDATE SET version = excluded.version, deleted = false;
    RETURN QUERY SELECT actual + 1, actual + total, head.position + 1, head.position + total, false;
END
$$;
