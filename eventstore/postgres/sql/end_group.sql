-- Move the heads of the group's streams and of the store; the rows themselves came by COPY.
INSERT INTO es.streams (stream, category, version)
    SELECT * FROM unnest(%(streams)s::text[], %(categories)s::text[], %(versions)s::bigint[])
    ON CONFLICT (stream) DO UPDATE SET version = excluded.version;
UPDATE es.counter SET position = %(position)s, recorded_at = %(recorded_at)s;
