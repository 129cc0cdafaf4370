-- Limits of es.append follow settings of the database.

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

-- As before, with limits that can be set.
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
            WHEN cardinality(tags) > most_tags THEN format('tags: more than %s', most_tags)
            WHEN EXISTS (SELECT FROM unnest(tags) AS tag WHERE tag IS NULL OR length(tag) > 255
                             OR tag !~ '^[^[:space:][:cntrl:]]+$') THEN 'tags: one is no tag'
            WHEN NOT EXISTS (SELECT FROM es.types WHERE subject = category || '.' || given.type)
                OR NOT EXISTS (SELECT FROM es.schemas WHERE schema_id = given.schema_id)
                THEN format('schema %s of %s.%s is not kept here: encode with POST /v1/encode',
                            schema_id, category, type)
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
