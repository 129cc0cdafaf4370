-- Move the heads of the group's streams; the rows themselves came by COPY.
INSERT INTO es.streams (stream, category, version)
    SELECT * FROM unnest(%(streams)s::text[], %(categories)s::text[], %(versions)s::bigint[])
    ON CONFLICT (stream) DO UPDATE SET version = excluded.version;
