-- Events may leave for the archive, the log in the lake: who takes them out, and what stays here.

DO $$
BEGIN
    CREATE ROLE penstock_archive NOLOGIN;
EXCEPTION WHEN duplicate_object OR unique_violation THEN
    NULL; -- roles belong to the whole cluster: another store was here before
END
$$;

ALTER TABLE es.streams ADD COLUMN archived_up_to bigint NOT NULL DEFAULT 0;
COMMENT ON COLUMN es.streams.archived_up_to IS 'Events below this version are in the archive';

-- Events that are in the archive, the log in the lake, and no longer in es.events. What PostgreSQL
-- promises of them is served from here: that an id is used, that a condition sees them, what filters
-- find, and in which order they are. Their tags stay in es.tags.
CREATE TABLE es.archived (
    position    bigint      PRIMARY KEY,
    store_id    uuid        NOT NULL,
    id          uuid        NOT NULL UNIQUE,
    stream      text        NOT NULL,
    version     bigint      NOT NULL,
    category    text        NOT NULL,
    type        text        NOT NULL,
    occurred_at timestamptz NOT NULL,
    recorded_at timestamptz NOT NULL,
    content     bytea       NOT NULL,
    UNIQUE (stream, version)
);
COMMENT ON COLUMN es.archived.store_id IS 'Names the log that has it';
COMMENT ON COLUMN es.archived.content IS 'es.content_of the event: tells a repetition from another';
CREATE INDEX archived_category ON es.archived (category, position);
CREATE INDEX archived_type ON es.archived (type, position) INCLUDE (category);

-- Every event that was ever recorded, by what is here of all of them.
CREATE VIEW es.recorded AS
    SELECT position, id, stream, version, category, type, occurred_at, recorded_at FROM es.events
    UNION ALL
    SELECT position, id, stream, version, category, type, occurred_at, recorded_at FROM es.archived;

-- A checksum of what makes an event's content: repeating it gives the same one. As in comparisons
-- of whole events, numbers are equal whatever way they are written, and a trace is no content.
CREATE FUNCTION es.content_of(type text, data bytea, tags text[], metadata jsonb) RETURNS bytea
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT sha256(
        sha256(content_of.data)
        || int8send(jsonb_hash_extended(
            content_of.metadata - '{traceparent,correlation_id,causation_id}'::text[], 0))
        || convert_to(jsonb_build_array(content_of.type, content_of.tags)::text, 'UTF8'))
$$;
REVOKE ALL ON FUNCTION es.content_of FROM PUBLIC;

-- What leaves es.events must be said to be in the archive, by its stream and by es.archived.
CREATE FUNCTION es.check_archived() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    missing bigint;
BEGIN
    SELECT min(gone.position) INTO missing FROM gone
        LEFT JOIN es.archived AS kept ON kept.position = gone.position
        LEFT JOIN es.streams AS streams ON streams.stream = gone.stream
        WHERE (kept.id, kept.stream, kept.version, kept.content) IS DISTINCT FROM
              (gone.id, gone.stream, gone.version,
               es.content_of(gone.type, gone.data, gone.tags, gone.metadata))
           OR gone.version >= coalesce(streams.archived_up_to, 0);
    IF missing IS NOT NULL THEN
        RAISE EXCEPTION 'the event at position % is not known to be in the archive', missing;
    END IF;
    RETURN NULL;
END
$$;
REVOKE ALL ON FUNCTION es.check_archived FROM PUBLIC;

-- Nobody changes an event, and nobody but the archive's role takes one out.
CREATE OR REPLACE FUNCTION es.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND current_user = 'penstock_archive' THEN
        RETURN NULL; -- es.check_archived looks at what goes
    END IF;
    RAISE EXCEPTION 'es.events is append-only: % is not allowed', TG_OP
        USING HINT = 'Facts are corrected by new events.';
END
$$;

CREATE TRIGGER archived_first AFTER DELETE ON es.events
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT
    WHEN (current_user = 'penstock_archive') EXECUTE FUNCTION es.check_archived();

GRANT SELECT ON es.archived, es.recorded TO penstock_service;
GRANT EXECUTE ON FUNCTION es.content_of TO penstock_service, penstock_archive;
GRANT USAGE ON SCHEMA es TO penstock_archive;
GRANT SELECT ON es.events, es.streams, es.archived, es.recorded TO penstock_archive;
GRANT DELETE ON es.events TO penstock_archive;
GRANT INSERT ON es.archived TO penstock_archive;

-- As before, and conditions see what is in the archive.
CREATE OR REPLACE FUNCTION es.newest_of_kind(category text, type text, after bigint)
RETURNS bigint LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    found record;
    passed integer := 0;
    newest bigint;
BEGIN
    FOR found IN SELECT position, category FROM es.events
            WHERE type = newest_of_kind.type AND position > newest_of_kind.after
            ORDER BY position DESC LIMIT 10000 LOOP
        IF newest_of_kind.category IS NULL OR found.category = newest_of_kind.category THEN
            newest := found.position;
            EXIT;
        END IF;
        passed := passed + 1;
    END LOOP;
    IF passed = 10000 THEN
        RETURN -1;
    END IF;
    FOR found IN SELECT position, category FROM es.archived
            WHERE type = newest_of_kind.type
              AND position > greatest(newest_of_kind.after, newest)
            ORDER BY position DESC LIMIT 10000 LOOP
        IF newest_of_kind.category IS NULL OR found.category = newest_of_kind.category THEN
            RETURN found.position;
        END IF;
        passed := passed + 1;
    END LOOP;
    RETURN coalesce(newest, CASE WHEN passed >= 10000 THEN -1 END);
END
$$;

-- As before, and ids of events in the archive stay used.
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
    -- Fails under REPEATABLE READ when somebody appended since the transaction's snapshot.
    SELECT position, greatest(clock_timestamp(), recorded_at) AS recorded_at INTO head
        FROM es.counter FOR UPDATE;

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
    INSERT INTO es.tags (tag, position, category, type)
        SELECT DISTINCT tag, head.position + place, into_category, type
            FROM es.given_events(append.events), unnest(tags) AS tag;
    INSERT INTO es.streams (stream, category, version)
        VALUES (into_stream, into_category, actual + total)
        ON CONFLICT (stream) DO UPDATE SET version = excluded.version, deleted = false;
    UPDATE es.counter SET position = head.position + total, recorded_at = head.recorded_at;
    RETURN QUERY SELECT actual + 1, actual + total, head.position + 1, head.position + total, false;
END
$$;

-- As before, and ES010 when an id is in the archive.
CREATE OR REPLACE FUNCTION es.append_group(
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
    head_streams  text[],
    head_categories text[],
    heads         bigint[],
    walks         jsonb
) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    now_ timestamptz;
    known boolean;
BEGIN
    PERFORM es.enter(append_group.number, append_group.before, before + cardinality(ids));
    SELECT counter.recorded_at, EXISTS (SELECT FROM es.archived WHERE archived.id = ANY (ids))
        INTO now_, known FROM es.counter;
    IF known THEN
        RAISE EXCEPTION 'an event of the group is in the archive' USING ERRCODE = 'ES010';
    END IF;
    IF walks IS NOT NULL THEN
        PERFORM es.none_matched(max(CASE
                WHEN cardinality(w.tags) = 0 THEN es.newest_of_kind(w.category, w.type, w.after)
                ELSE es.newest_tagged(w.tags, w.category, w.type, w.after) END))
            FROM jsonb_to_recordset(walks) AS w (tags text[], category text, type text, after bigint);
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
    INSERT INTO es.streams (stream, category, version)
        SELECT * FROM unnest(head_streams, head_categories, heads)
        ON CONFLICT (stream) DO UPDATE SET version = excluded.version;
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
