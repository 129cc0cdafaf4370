-- The short way of an append: a whole group in one call, by a writer that knows what it will find.

-- Takes the append lock and the positions up to `head` for a writer that believes to hold the lease
-- `number` and to know the head before. ES010 when any of it is not so: then it has to look first.
CREATE FUNCTION es.enter(number bigint, before bigint, head bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(7305801002);
    UPDATE es.counter
        SET position = enter.head, recorded_at = greatest(clock_timestamp(), counter.recorded_at)
        FROM es.lease
        WHERE counter.position = enter.before AND lease.number = enter.number;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the head or the writer is another by now' USING ERRCODE = 'ES010';
    END IF;
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
    head_streams  text[],
    head_categories text[],
    heads         bigint[],
    walks         jsonb
) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    now_ timestamptz;
BEGIN
    PERFORM es.enter(append_group.number, append_group.before, before + cardinality(ids));
    SELECT counter.recorded_at INTO now_ FROM es.counter;
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
REVOKE ALL ON FUNCTION es.append_group FROM PUBLIC;
GRANT EXECUTE ON FUNCTION es.append_group TO penstock_service;
