-- The head is what the last event says; the searches of a condition share one budget; what es.append
-- takes can be shown again, and is durable.

DROP TABLE es.counter;
-- The head of the store: the last event says it. A row that every append changed would leave a dead
-- version behind each time, and all of them are walked through while some old snapshot is open.
CREATE VIEW es.counter AS
    SELECT coalesce(last.position, 0) AS position,
           coalesce(last.recorded_at, '-infinity') AS recorded_at
    FROM es.store
    LEFT JOIN LATERAL (
        SELECT position, recorded_at FROM es.recorded ORDER BY position DESC LIMIT 1
    ) AS last ON true;
CREATE RULE counter_follows AS ON UPDATE TO es.counter DO INSTEAD NOTHING;
GRANT SELECT, UPDATE ON es.counter TO penstock_service;

-- Every schema that events of a type were or are written with.
CREATE TABLE es.type_schemas (
    subject   text    NOT NULL,
    schema_id integer NOT NULL REFERENCES es.schemas,
    PRIMARY KEY (subject, schema_id)
);
INSERT INTO es.type_schemas (subject, schema_id) SELECT subject, schema_id FROM es.types;
INSERT INTO es.type_schemas (subject, schema_id)
    SELECT DISTINCT subject, schema_id FROM es.schema_versions JOIN es.schemas USING (schema_id)
    ON CONFLICT DO NOTHING;
GRANT SELECT, INSERT ON es.type_schemas TO penstock_service;

DROP FUNCTION es.newest_tagged, es.newest_of_kind;
-- Newest event behind `after` that carries all tags and is of the type, where one is named: the
-- lists of positions are walked together, newest first, each jumping to where the others are. `budget`
-- is how many jumps there may be, and comes back less those that were made; `newest` is -1 when they
-- did not suffice: two tags that are both everywhere and never meet would be walked for as long as
-- they are. A type of the same name in another category is passed over one by one.
CREATE FUNCTION es.newest_tagged(
    tags text[], category text, type text, after bigint, INOUT budget integer, OUT newest bigint
) LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    candidate bigint := 9223372036854775807;
    agreeing integer := 0;
    place integer := 1;
    found record;
BEGIN
    WHILE newest_tagged.budget > 0 LOOP
        newest_tagged.budget := newest_tagged.budget - 1;
        IF newest_tagged.type IS NULL THEN
            SELECT position, NULL AS category INTO found FROM es.tags
                WHERE tag = newest_tagged.tags[place]
                  AND position > newest_tagged.after AND position <= candidate
                ORDER BY position DESC LIMIT 1;
        ELSE
            SELECT position, category INTO found FROM es.tags
                WHERE tag = newest_tagged.tags[place] AND type = newest_tagged.type
                  AND position > newest_tagged.after AND position <= candidate
                ORDER BY position DESC LIMIT 1;
        END IF;
        IF found.position IS NULL THEN
            RETURN;
        END IF;
        agreeing := CASE WHEN found.position = candidate THEN agreeing + 1 ELSE 1 END;
        candidate := found.position;
        IF found.category <> newest_tagged.category THEN
            candidate := candidate - 1;
            agreeing := 0;
        ELSIF agreeing = cardinality(newest_tagged.tags) THEN
            newest_tagged.newest := candidate;
            RETURN;
        END IF;
        place := place % cardinality(newest_tagged.tags) + 1;
    END LOOP;
    newest_tagged.newest := -1;
END
$$;

-- Newest event behind `after` of a type, in one category or any. `budget` is how many events of other
-- categories that have a type of this name may be passed over; `newest` is -1 when it did not suffice.
CREATE FUNCTION es.newest_of_kind(
    category text, type text, after bigint, INOUT budget integer, OUT newest bigint
) LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    found record;
BEGIN
    FOR found IN SELECT position, category FROM es.recorded
            WHERE type = newest_of_kind.type AND position > newest_of_kind.after
            ORDER BY position DESC LIMIT newest_of_kind.budget LOOP
        newest_of_kind.budget := newest_of_kind.budget - 1;
        IF newest_of_kind.category IS NULL OR found.category = newest_of_kind.category THEN
            newest_of_kind.newest := found.position;
            RETURN;
        END IF;
    END LOOP;
    IF newest_of_kind.budget = 0 THEN
        newest_of_kind.newest := -1;
    END IF;
END
$$;

-- For each condition (`number`) the newest event that one of its searches finds: NULL when none does,
-- -1 when that cannot be told within `budget`, which all searches of one condition share. Of a table
-- that was never analysed, the planner would sort all events of a tag rather than read the newest one.
CREATE FUNCTION es.newest_matches(walks jsonb, budget integer)
RETURNS TABLE (number integer, newest bigint)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    walk record;
    remaining integer;
    share integer;
    found record;
    gave_up boolean;
BEGIN
    FOR walk IN SELECT w.*, row_number() OVER later AS nth,
                       lag(w.number) OVER (ORDER BY w.number, w.place) AS before,
                       lead(w.number) OVER (ORDER BY w.number, w.place) AS next
            FROM ROWS FROM (jsonb_to_recordset(walks)
                    AS (number integer, tags text[], category text, type text, after bigint))
                WITH ORDINALITY AS w (number, tags, category, type, after, place)
            WINDOW later AS (PARTITION BY w.number ORDER BY w.place DESC)
            ORDER BY w.number, w.place LOOP
        IF walk.before IS DISTINCT FROM walk.number THEN
            number := walk.number;
            newest := NULL;
            remaining := newest_matches.budget;
            gave_up := false;
        END IF;
        share := greatest(remaining / walk.nth::integer, 1);
        IF cardinality(walk.tags) = 0 THEN
            SELECT * INTO found FROM es.newest_of_kind(
                walk.category, walk.type, greatest(walk.after, newest), share);
        ELSE
            SELECT * INTO found FROM es.newest_tagged(
                walk.tags, walk.category, walk.type, greatest(walk.after, newest), share);
        END IF;
        remaining := remaining - share + found.budget;
        gave_up := gave_up OR coalesce(found.newest = -1, false);
        newest := coalesce(nullif(found.newest, -1), newest);
        IF walk.next IS DISTINCT FROM walk.number THEN
            newest := coalesce(newest, CASE WHEN gave_up THEN -1 END);
            RETURN NEXT;
        END IF;
    END LOOP;
END
$$;
REVOKE ALL ON FUNCTION es.newest_tagged, es.newest_of_kind, es.newest_matches FROM PUBLIC;
GRANT EXECUTE ON FUNCTION es.newest_tagged, es.newest_of_kind, es.newest_matches TO penstock_service;

-- A number of a document that readers would see altered: beyond 64 bits, or a fraction that no double
-- is. NULL when there is none.
CREATE FUNCTION es.altered_number(document jsonb) RETURNS numeric
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $$
DECLARE
    number numeric;
BEGIN
    FOR number IN SELECT item::numeric
            FROM jsonb_path_query(document, '$.** ? (@.type() == "number")') AS item LOOP
        IF number NOT BETWEEN -9223372036854775808 AND 9223372036854775807 THEN
            RETURN number;
        ELSIF number <> trunc(number) AND (
            abs(number) < 1e-300 OR number::float8::text::numeric <> number
        ) THEN
            RETURN number;
        END IF;
    END LOOP;
    RETURN NULL;
END
$$;
REVOKE ALL ON FUNCTION es.altered_number FROM PUBLIC;

CREATE OR REPLACE FUNCTION es.check_given(category text, events jsonb) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    complaint text;
    most_events CONSTANT integer := es.limit_of('max_events', 1000);
    most_bytes CONSTANT integer := es.limit_of('max_event_bytes', 262144);
    most_tags CONSTANT integer := es.limit_of('max_tags', 16);
BEGIN
    IF jsonb_typeof(events) IS DISTINCT FROM 'array'
        OR jsonb_array_length(events) NOT BETWEEN 1 AND most_events THEN
        RAISE EXCEPTION 'events: expected a list of 1 to % events', most_events USING ERRCODE = 'ES004';
    END IF;
    SELECT format('events[%s]: %s', place - 1, wrong) INTO complaint
        FROM es.given_events(events) AS given CROSS JOIN LATERAL (SELECT CASE
            WHEN id IS NULL THEN 'id: a UUID of your own is needed'
            WHEN type IS NULL OR type !~ '^[A-Za-z][A-Za-z0-9_]{0,127}$' THEN 'type: no name'
            WHEN schema_id IS NULL THEN 'data: not base64 of Avro in the five-byte framing'
            WHEN length(data) > most_bytes THEN format('data: more than %s bytes', most_bytes)
            WHEN jsonb_typeof(metadata) <> 'object' THEN 'metadata: expected an object'
            WHEN length(metadata::text) > most_bytes
                THEN format('metadata: more than %s bytes', most_bytes)
            WHEN metadata @? '$.**{60}' THEN 'metadata: nested deeper than 60 levels'
            WHEN es.altered_number(metadata) IS NOT NULL
                THEN format('metadata: the number %s would not come back as it was sent: send it as text',
                            left(es.altered_number(metadata)::text, 60))
            WHEN occurred_at NOT BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00'
                THEN 'occurred_at: not within the years 1 to 9999'
            WHEN cardinality(tags) > most_tags THEN format('tags: more than %s', most_tags)
            WHEN EXISTS (SELECT FROM unnest(tags) AS tag WHERE tag IS NULL OR length(tag) > 255
                             OR tag !~ '^[^[:space:][:cntrl:]]+$') THEN 'tags: one is no tag'
            WHEN NOT EXISTS (SELECT FROM es.types WHERE subject = category || '.' || given.type
                                 AND schema_id = given.schema_id)
                AND NOT EXISTS (SELECT FROM es.type_schemas
                                    WHERE subject = category || '.' || given.type
                                      AND schema_id = given.schema_id)
                THEN format('%s.%s is not written with schema %s: encode with POST /v1/encode',
                            category, type, schema_id)
        END AS wrong) AS judged
        WHERE wrong IS NOT NULL ORDER BY place LIMIT 1;
    IF complaint IS NULL AND (SELECT count(DISTINCT id) < count(*) FROM es.given_events(events)) THEN
        complaint := 'events: an id occurs twice';
    END IF;
    IF complaint IS NOT NULL THEN
        RAISE EXCEPTION '%', complaint USING ERRCODE = 'ES004';
    END IF;
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

DROP FUNCTION es.enter;
-- Takes the append lock for a writer that believes to hold the lease `number` and to know the head
-- `before`, and returns the time of what it appends. ES010 when any of it is not so: then it has to
-- look first.
CREATE FUNCTION es.enter(number bigint, before bigint) RETURNS timestamptz
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    moment timestamptz;
BEGIN
    PERFORM pg_advisory_xact_lock(7305801002);
    SELECT greatest(clock_timestamp(), counter.recorded_at) INTO moment
        FROM es.counter, es.lease
        WHERE counter.position = enter.before AND lease.number = enter.number;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the head or the writer is another by now' USING ERRCODE = 'ES010';
    END IF;
    RETURN moment;
END
$$;
REVOKE ALL ON FUNCTION es.enter FROM PUBLIC;
GRANT EXECUTE ON FUNCTION es.enter TO penstock_service;

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
