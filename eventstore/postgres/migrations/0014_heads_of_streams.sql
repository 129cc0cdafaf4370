-- The version of a stream is what its last event says: nothing is updated for an append.

-- Streams with the version of their last event, which the event itself says, for the same reason.
CREATE VIEW es.heads AS
    SELECT streams.stream, streams.category, last.version, deleted, truncate_before, tombstoned,
           max_age_s, max_count, archived_up_to
    FROM es.streams
    CROSS JOIN LATERAL (
        SELECT version FROM es.recorded WHERE recorded.stream = streams.stream
            ORDER BY version DESC LIMIT 1
    ) AS last;

GRANT SELECT ON es.heads TO penstock_service, penstock_archive;
ALTER TABLE es.streams DROP COLUMN version;
ALTER TABLE es.streams RESET (fillfactor);

CREATE OR REPLACE FUNCTION es.check_expected(stream text, expected text) RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    found record;
BEGIN
    SELECT version, deleted, tombstoned INTO found
        FROM es.heads WHERE stream = check_expected.stream;
    IF found.tombstoned THEN
        RAISE EXCEPTION 'stream % is gone for good', check_expected.stream USING ERRCODE = 'ES003';
    END IF;
    IF expected = 'any'
        OR expected = 'no_stream' AND (found.version IS NULL OR found.deleted)
        OR expected = 'stream_exists' AND found.version IS NOT NULL AND NOT found.deleted
        OR expected = found.version::text THEN
        RETURN coalesce(found.version, -1);
    END IF;
    IF expected IS NULL OR expected !~ '^(any|no_stream|stream_exists|[0-9]{1,18})$' THEN
        RAISE EXCEPTION 'expected: % is no version', quote_nullable(expected)
            USING ERRCODE = 'ES004';
    END IF;
    RAISE EXCEPTION 'stream % %, expected %', check_expected.stream,
        coalesce('is at version ' || found.version, 'does not exist'), expected
        USING ERRCODE = 'ES001', DETAIL = jsonb_build_object(
            'stream', check_expected.stream, 'expected', expected, 'actual', found.version)::text;
END
$$;

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
    IF actual < 0 THEN
        INSERT INTO es.streams (stream, category) VALUES (into_stream, into_category);
    ELSE
        UPDATE es.streams SET deleted = false WHERE stream = into_stream AND deleted;
    END IF;
    RETURN QUERY SELECT actual + 1, actual + total, head.position + 1, head.position + total, false;
END
$$;

DROP FUNCTION es.append_group(
    bigint, bigint, uuid, uuid[], text[], bigint[], text[], text[], integer[], smallint[], bytea[], text[],
    text[], jsonb[], text[], timestamptz[], text[], text[], bigint[], jsonb
);
CREATE FUNCTION es.append_group(
    number        bigint,
    before        bigint,
    of_store      uuid,
    ids           uuid[],
    streams       text[],
    versions      bigint[],
    categories    text[],
    types         text[],
    schema_ids    integer[],
    data_formats  smallint[],
    bodies        bytea[],
    subjects      text[],
    key_ids       text[],
    metadatas     jsonb[],
    tag_lists     text[],
    times         timestamptz[],
    walks         jsonb
) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    now_ CONSTANT timestamptz := es.enter(append_group.number, append_group.before);
BEGIN
    IF EXISTS (SELECT FROM es.archived WHERE archived.id = ANY (ids)) THEN
        RAISE EXCEPTION 'an event of the group is in the archive' USING ERRCODE = 'ES010';
    END IF;
    IF walks IS NOT NULL THEN
        PERFORM es.none_matched(max(newest)) FROM es.newest_matches(walks, 1000);
    END IF;
    INSERT INTO es.events (
        position, store_id, id, stream, version, category, type, schema_id, data_format, data,
        subject, key_id, metadata, tags, occurred_at, recorded_at
    )
    SELECT append_group.before + g.place, of_store, g.id, g.stream, g.version, g.category, g.type,
           g.schema_id, coalesce(g.data_format, 0), g.data, g.subject, g.key_id,
           coalesce(g.metadata, '{}'), coalesce(g.tags::text[], '{}'),
           coalesce(g.occurred_at, now_), now_
        FROM unnest(
            ids, streams, versions, categories, types, schema_ids, data_formats, bodies, subjects,
            key_ids, metadatas, tag_lists, times
        ) WITH ORDINALITY AS g (
            id, stream, version, category, type, schema_id, data_format, data, subject, key_id,
            metadata, tags, occurred_at, place
        );
    INSERT INTO es.streams (stream, category)
        SELECT g.stream, g.category
            FROM unnest(streams, versions, categories) AS g (stream, version, category)
            WHERE g.version = 0
        ON CONFLICT DO NOTHING;
    IF tag_lists IS NOT NULL THEN
        INSERT INTO es.tags (tag, position, category, type)
            SELECT tag, append_group.before + g.place, g.category, g.type
            FROM unnest(tag_lists, categories, types)
                WITH ORDINALITY AS g (tags, category, type, place),
                unnest(g.tags::text[]) AS tag
            ON CONFLICT DO NOTHING;
    END IF;
END
$$;
REVOKE ALL ON FUNCTION es.append_group FROM PUBLIC;
GRANT EXECUTE ON FUNCTION es.append_group TO penstock_service;
