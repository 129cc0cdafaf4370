-- What all migrations add up to: read this to know the schema, apply it never. A test applies both
-- and compares. Roles are left out; see migrations/0002_append_only.sql.
--
-- Text that is searched and sorted is in the order of its bytes, whatever the database's collation is:
-- an index in the order of a locale is broken by the next version of the library that knows the locale.

CREATE SCHEMA es;

CREATE TABLE es.migrations (
    number     integer     PRIMARY KEY,
    name       text        NOT NULL,
    sha256     text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE es.store (
    store_id   uuid        NOT NULL,
    made_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    only_row   boolean     PRIMARY KEY DEFAULT true CHECK (only_row),
    known_head bigint
);
COMMENT ON TABLE es.store IS 'Identity of this store; part of the identity of each event';
COMMENT ON COLUMN es.store.known_head IS 'Set by a service that finds the head below it: events were lost';

-- Only archived events leave dead rows here: vacuum takes them out of the indexes when they are one row
-- in fifty.
CREATE TABLE es.events (
    position    bigint      PRIMARY KEY CHECK (position > 0),
    store_id    uuid        NOT NULL,
    id          uuid        NOT NULL UNIQUE,
    stream      text COLLATE "C" NOT NULL,
    version     bigint      NOT NULL CHECK (version >= 0),
    category    text COLLATE "C" NOT NULL,
    type        text COLLATE "C" NOT NULL,
    schema_id   integer     NOT NULL,
    data_format smallint    NOT NULL DEFAULT 0,
    data        bytea       NOT NULL,
    subject     text,
    key_id      text,
    metadata    jsonb       NOT NULL DEFAULT '{}',
    tags        text[]      NOT NULL DEFAULT '{}',
    occurred_at timestamptz NOT NULL,
    recorded_at timestamptz NOT NULL,
    UNIQUE (stream, version)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
COMMENT ON COLUMN es.events.data IS 'Avro in the five-byte framing (data_format 0)';
COMMENT ON COLUMN es.events.subject IS 'Reserved: whose personal data this is';
COMMENT ON COLUMN es.events.key_id IS 'Reserved: the key that data is sealed with (data_format 1)';
-- A category by itself, a type by itself, a type of one category.
CREATE INDEX events_category ON es.events (category, position);
CREATE INDEX events_type ON es.events (type, position) INCLUDE (category);

CREATE TABLE es.streams (
    stream          text COLLATE "C" PRIMARY KEY,
    category        text COLLATE "C" NOT NULL,
    deleted         boolean NOT NULL DEFAULT false,
    truncate_before bigint  NOT NULL DEFAULT 0,
    tombstoned      boolean NOT NULL DEFAULT false,
    max_age_s       bigint CHECK (max_age_s > 0),
    max_count       bigint CHECK (max_count > 0),
    archived_up_to  bigint  NOT NULL DEFAULT 0
);
COMMENT ON COLUMN es.streams.deleted IS 'Deleted, and nothing was appended since';
COMMENT ON COLUMN es.streams.truncate_before IS 'Reads of the stream begin at this version';
COMMENT ON COLUMN es.streams.tombstoned IS 'Gone for good: neither read nor appended to';
COMMENT ON COLUMN es.streams.max_age_s IS 'Reads of the stream leave out older events';
COMMENT ON COLUMN es.streams.max_count IS 'Reads of the stream show this many events at most';
COMMENT ON COLUMN es.streams.archived_up_to IS 'Events below this version are in the archive';

CREATE TABLE es.categories (
    category text COLLATE "C" PRIMARY KEY
);

CREATE TABLE es.tags (
    tag      text COLLATE "C" NOT NULL,
    position bigint NOT NULL,
    category text COLLATE "C" NOT NULL,
    type     text COLLATE "C" NOT NULL,
    PRIMARY KEY (tag, position)
);
CREATE INDEX tags_type ON es.tags (tag, type, position) INCLUDE (category);
COMMENT ON TABLE es.tags IS 'Events by tag; category and type repeat what the event has';

-- Events that are in the archive, the log in the lake, and no longer in es.events. What PostgreSQL
-- promises of them is served from here: that an id is used, that a condition sees them, what filters
-- find, and in which order they are. Their tags stay in es.tags.
CREATE TABLE es.archived (
    position    bigint      PRIMARY KEY,
    store_id    uuid        NOT NULL,
    id          uuid        NOT NULL UNIQUE,
    stream      text COLLATE "C" NOT NULL,
    version     bigint      NOT NULL,
    category    text COLLATE "C" NOT NULL,
    type        text COLLATE "C" NOT NULL,
    occurred_at timestamptz NOT NULL,
    recorded_at timestamptz NOT NULL,
    content     bytea       NOT NULL,
    bytes       integer,
    UNIQUE (stream, version)
);
COMMENT ON COLUMN es.archived.store_id IS 'Names the log that has it';
COMMENT ON COLUMN es.archived.content IS 'es.content_of the event: tells a repetition from another';
COMMENT ON COLUMN es.archived.bytes IS 'Size of data and metadata; null: archived before that was kept';
CREATE INDEX archived_category ON es.archived (category, position);
CREATE INDEX archived_type ON es.archived (type, position) INCLUDE (category);

-- Every event that was ever recorded, by what is here of all of them.
CREATE VIEW es.recorded AS
    SELECT position, id, stream, version, category, type, occurred_at, recorded_at FROM es.events
    UNION ALL
    SELECT position, id, stream, version, category, type, occurred_at, recorded_at FROM es.archived;

-- The head of the store: the last event says it. A row that every append changed would leave a dead
-- version behind each time, and all of them are walked through while some old snapshot is open.
CREATE VIEW es.counter AS
    SELECT coalesce(last.position, 0) AS position,
           coalesce(last.recorded_at, '-infinity') AS recorded_at
    FROM es.store
    LEFT JOIN LATERAL (
        SELECT position, recorded_at FROM es.recorded ORDER BY position DESC LIMIT 1
    ) AS last ON true;
-- A writer of the version before still says how far it came; the events themselves have said it.
CREATE RULE counter_follows AS ON UPDATE TO es.counter DO INSTEAD NOTHING;

-- Streams with the version of their last event, which the event itself says, for the same reason.
CREATE VIEW es.heads AS
    SELECT streams.stream, streams.category, last.version, deleted, truncate_before, tombstoned,
           max_age_s, max_count, archived_up_to
    FROM es.streams
    CROSS JOIN LATERAL (
        SELECT version FROM es.recorded WHERE recorded.stream = streams.stream
            ORDER BY version DESC LIMIT 1
    ) AS last;

-- Who may append. A writer commits only while `number` is the one that it was given.
CREATE TABLE es.lease (
    number     bigint      NOT NULL,
    holder     text        NOT NULL,
    expires_at timestamptz NOT NULL,
    only_row   boolean     PRIMARY KEY DEFAULT true CHECK (only_row)
) WITH (fillfactor = 50);

-- Schemas that data was written with: appends and reads go on while the registry is away.
CREATE TABLE es.schemas (
    schema_id integer PRIMARY KEY,
    schema    text    NOT NULL
);
CREATE TABLE es.types (
    subject   text COLLATE "C" PRIMARY KEY,
    schema_id integer NOT NULL REFERENCES es.schemas
);
COMMENT ON TABLE es.types IS 'The schema that new events of a type are written with';

-- Every schema that events of a type were or are written with.
CREATE TABLE es.type_schemas (
    subject   text COLLATE "C" NOT NULL,
    schema_id integer NOT NULL REFERENCES es.schemas,
    PRIMARY KEY (subject, schema_id)
);

-- Persistent subscriptions: written under the row lock of the group's subscription.
CREATE TABLE es.subscriptions (
    name           text COLLATE "C" PRIMARY KEY,
    category       text,
    type           text,
    stream_prefix  text,
    tag            text,
    started_after  bigint      NOT NULL CHECK (started_after >= 0),
    max_deliveries integer     NOT NULL,
    ack_timeout    interval    NOT NULL,
    backoff        interval    NOT NULL,
    backoff_cap    interval    NOT NULL,
    max_in_flight  integer     NOT NULL,
    look_ahead     integer     NOT NULL,
    max_parked     integer     NOT NULL,
    made_at        timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- How far each group is, by its newest row. A round adds one and takes the one before away. While an
-- old snapshot is open none of those can be removed, but nobody passes them: the newest is at the end
-- of the index, where the versions of one row that every round changed would all be in one place.
-- Likewise what a group has finished lies before `finished_to`, where nobody looks for deliveries.
CREATE TABLE es.rounds (
    subscription text COLLATE "C" NOT NULL REFERENCES es.subscriptions ON DELETE CASCADE,
    number       bigint  NOT NULL,
    scanned_to   bigint  NOT NULL,
    finished_to  bigint  NOT NULL,
    parked       integer NOT NULL CHECK (parked >= 0),
    redelivered  bigint  NOT NULL,
    PRIMARY KEY (subscription, number)
) WITH (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 2000);
COMMENT ON COLUMN es.rounds.scanned_to IS 'Every event up to here was looked at';
COMMENT ON COLUMN es.rounds.finished_to IS 'Every event up to here is finished, parked or not for this group';

-- Rows come and go with each event: vacuum must not wait for a fifth of the table to be dead.
-- One index: of a table whose rows are all dead the planner might take another one, and pass them all.
CREATE TABLE es.deliveries (
    subscription text COLLATE "C" NOT NULL REFERENCES es.subscriptions ON DELETE CASCADE,
    position     bigint      NOT NULL,
    event_id     uuid        NOT NULL,
    stream       text        NOT NULL,
    deliveries   integer     NOT NULL,
    consumer     text,
    due_at       timestamptz NOT NULL,
    reason       text,
    PRIMARY KEY (subscription, position)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 2000);
COMMENT ON COLUMN es.deliveries.consumer IS 'Who has it, until due_at; null: waits until due_at';

CREATE TABLE es.parked (
    subscription text COLLATE "C" NOT NULL REFERENCES es.subscriptions ON DELETE CASCADE,
    position     bigint      NOT NULL,
    event_id     uuid        NOT NULL,
    stream       text        NOT NULL,
    deliveries   integer     NOT NULL,
    reason       text        NOT NULL,
    parked_at    timestamptz NOT NULL,
    PRIMARY KEY (subscription, position),
    UNIQUE (event_id, subscription)
);

GRANT USAGE ON SCHEMA es TO penstock_service;
GRANT SELECT ON ALL TABLES IN SCHEMA es TO penstock_service;
GRANT INSERT ON es.events, es.streams, es.categories, es.tags, es.schemas, es.types,
    es.type_schemas TO penstock_service;
GRANT UPDATE ON es.streams, es.counter, es.lease, es.types TO penstock_service;
GRANT UPDATE (known_head) ON es.store TO penstock_service;
GRANT SELECT, INSERT, UPDATE, DELETE ON es.subscriptions, es.deliveries, es.parked
    TO penstock_service;
GRANT INSERT, DELETE ON es.rounds TO penstock_service;

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

-- Fails when a condition matches something, after all: then the writer has to look first.
CREATE FUNCTION es.none_matched(newest bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF newest IS NOT NULL THEN
        RAISE EXCEPTION 'position % matches a condition', newest USING ERRCODE = 'ES010';
    END IF;
END
$$;
REVOKE ALL ON FUNCTION es.newest_tagged, es.newest_of_kind, es.newest_matches FROM PUBLIC;
GRANT EXECUTE ON FUNCTION es.newest_tagged, es.newest_of_kind, es.newest_matches TO penstock_service;
REVOKE ALL ON FUNCTION es.none_matched FROM PUBLIC;
GRANT EXECUTE ON FUNCTION es.none_matched TO penstock_service;

-- Events as `es.append` takes them, one row each. `data` is base64 of Avro in the five-byte framing.
CREATE FUNCTION es.given_events(events jsonb)
RETURNS TABLE (place bigint, id uuid, type text, data bytea, schema_id integer, metadata jsonb,
               tags text[], occurred_at timestamptz)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT given.place, given.id, given.type, bytes.data,
           CASE WHEN length(bytes.data) > 5 AND get_byte(bytes.data, 0) = 0
               THEN ('x' || encode(substr(bytes.data, 2, 4), 'hex'))::bit(32)::integer END,
           coalesce(given.metadata, '{}'), coalesce(given.tags, '{}'), given.occurred_at
        FROM ROWS FROM (
                jsonb_to_recordset(given_events.events)
                    AS (id uuid, type text, data text, metadata jsonb, tags text[],
                        occurred_at timestamptz)
            ) WITH ORDINALITY AS given (id, type, data, metadata, tags, occurred_at, place)
            CROSS JOIN LATERAL (SELECT decode(given.data, 'base64') AS data) AS bytes
$$;

-- A limit that the database's owner has set (`ALTER DATABASE … SET penstock.max_events = 2000`), or the
-- usual one. What a session sets for itself does not count.
CREATE FUNCTION es.limit_of(name text, usual integer) RETURNS integer
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(max(split_part(setting, '=', 2)::integer), limit_of.usual)
        FROM pg_db_role_setting CROSS JOIN LATERAL unnest(setconfig) AS setting
        WHERE setrole = 0
          AND setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
          AND split_part(setting, '=', 1) = 'penstock.' || limit_of.name
$$;
REVOKE ALL ON FUNCTION es.limit_of FROM PUBLIC;

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

CREATE FUNCTION es.check_given(category text, events jsonb) RETURNS void
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

-- Sets a time limit for the rest of the caller's transaction, unless a shorter one holds already.
CREATE FUNCTION es.limit_setting(name text, at_most interval) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    present interval := current_setting(name)::interval;
BEGIN
    IF present = interval '0' OR present > at_most THEN
        PERFORM set_config(name, (extract(epoch FROM at_most) * 1000)::integer::text, true);
    END IF;
END
$$;

-- Appends to one stream inside the caller's transaction: positions and versions are the caller's
-- when it commits. `expected`: a version, any, no_stream or stream_exists. Refusals: ES001 version
-- conflict, ES002 id reused, ES003 stream gone, ES004 malformed; 55P03 when the lock was not free
-- within two seconds.
--
-- From the call to the commit nobody else can append. So the rest of the transaction is given two
-- seconds: idle, for each statement and, from PostgreSQL 17 on, in all. Its commit is durable when it
-- returns, whatever synchronous_commit the session has: later appends follow on it.
CREATE FUNCTION es.append(stream text, expected text, events jsonb)
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

-- Version of the last event, -1 when there is none; raises when `expected` is not met.
CREATE FUNCTION es.check_expected(stream text, expected text) RETURNS bigint
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

REVOKE ALL ON FUNCTION es.given_events, es.check_given, es.check_expected, es.limit_setting,
    es.append FROM PUBLIC;
GRANT USAGE ON SCHEMA es TO penstock_appender;
GRANT EXECUTE ON FUNCTION es.append TO penstock_appender;

CREATE FUNCTION es.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND current_user = 'penstock_archive' THEN
        RETURN NULL; -- es.check_archived looks at what goes
    END IF;
    RAISE EXCEPTION 'es.events is append-only: % is not allowed', TG_OP
        USING HINT = 'Facts are corrected by new events.';
END
$$;

CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON es.events
    FOR EACH STATEMENT EXECUTE FUNCTION es.refuse_change();

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

CREATE TRIGGER archived_first AFTER DELETE ON es.events
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT
    WHEN (current_user = 'penstock_archive') EXECUTE FUNCTION es.check_archived();

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

GRANT SELECT ON es.archived, es.recorded TO penstock_service;
GRANT EXECUTE ON FUNCTION es.content_of TO penstock_service, penstock_archive;
GRANT USAGE ON SCHEMA es TO penstock_archive;
GRANT SELECT ON es.events, es.streams, es.archived, es.recorded, es.heads TO penstock_archive;
GRANT DELETE ON es.events TO penstock_archive;
GRANT INSERT ON es.archived TO penstock_archive;

-- What deciders keep beside the events. All of it can be computed again, but for the answers.
CREATE TABLE es.snapshots (
    stream        text COLLATE "C" NOT NULL,
    decider       text COLLATE "C" NOT NULL,
    first_version bigint      NOT NULL,
    version       bigint      NOT NULL,
    position      bigint      NOT NULL,
    recorded_at   timestamptz NOT NULL,
    shapes        json        NOT NULL,
    state         json        NOT NULL,
    made_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (stream, decider, version)
);
COMMENT ON COLUMN es.snapshots.decider IS 'Version and checksum of the code that folded it';
COMMENT ON COLUMN es.snapshots.shapes IS 'Schema version of each event type as it was folded';

-- Answers of commands with a key that led to no events. Those with events are found by their ids.
CREATE TABLE es.commands (
    key         text COLLATE "C" PRIMARY KEY,
    fingerprint text        NOT NULL,
    answer      json        NOT NULL,
    at          timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX commands_at ON es.commands (at);

-- All versions of an event type's schema, so that old events are read while the registry is away.
CREATE TABLE es.schema_versions (
    subject   text COLLATE "C" NOT NULL,
    version   integer NOT NULL,
    schema_id integer NOT NULL,
    schema    text    NOT NULL,
    PRIMARY KEY (subject, version)
);

GRANT SELECT, INSERT, UPDATE, DELETE ON es.snapshots, es.commands TO penstock_service;
-- What a new version of a type's schema must get on with, where that is not the default.
CREATE TABLE es.compatibility (
    subject text COLLATE "C" PRIMARY KEY,
    level   text NOT NULL
);

GRANT SELECT, INSERT ON es.schema_versions TO penstock_service;
GRANT SELECT, INSERT, UPDATE ON es.compatibility TO penstock_service;

-- Takes the append lock for a writer that believes to hold the lease `number` and to know the head
-- `before`, and returns the time of what it appends. ES010 when any of it is not so, or when somebody
-- found that the store lost events: then it has to look first.
CREATE FUNCTION es.enter(number bigint, before bigint) RETURNS timestamptz
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    moment timestamptz;
BEGIN
    PERFORM pg_advisory_xact_lock(7305801002);
    SELECT greatest(clock_timestamp(), counter.recorded_at) INTO moment
        FROM es.counter, es.lease, es.store
        WHERE counter.position = enter.before AND lease.number = enter.number
          AND store.known_head IS NULL;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the head or the writer is another by now' USING ERRCODE = 'ES010';
    END IF;
    RETURN moment;
END
$$;
REVOKE ALL ON FUNCTION es.enter FROM PUBLIC;
GRANT EXECUTE ON FUNCTION es.enter TO penstock_service;

-- Appends events behind the head `before`, in the order of the arrays, for a writer that believes to
-- hold the lease `number` and to know the heads of store and streams. ES010 when it does not hold
-- the lease or the head is another; an id or a version that is there already violates its index.
-- Arrays may be NULL where no event has such a value. Positions are `before + 1`, `before + 2`, …
-- `walks` are the searches of the group's conditions, as a list of objects (tags, category, type,
-- after); ES010 when one of them finds an event.
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

-- How long the writer holds the lease, by its newest renewal. One adds a row and takes the one before
-- away, as with es.rounds: every append reads the lease, and would pass all versions that renewals had
-- left of its row, one every few seconds, while an old snapshot is open.
CREATE TABLE es.renewals (
    number     bigint      NOT NULL,
    renewal    bigint      NOT NULL,
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (number, renewal)
) WITH (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 2000);
COMMENT ON COLUMN es.renewals.number IS 'Of the lease that is renewed';

GRANT SELECT, INSERT, DELETE ON es.renewals TO penstock_service;
