-- The next events of a stream that are still here, below a version: as many as fit. The last two
-- columns are the texts that lines of JSON show.
SELECT position, id, stream, version, category, type, schema_id, data_format, data, subject,
       key_id, metadata, tags, occurred_at, recorded_at, store_id,
       nullif(metadata::text, '{}'),
       CASE WHEN tags <> '{}' THEN array_to_json(tags)::text END
    FROM (
        SELECT *, sum(octet_length(data)) OVER (ORDER BY version) - octet_length(data) AS before_it
            FROM es.events
            WHERE stream = %(stream)s AND version >= %(from_version)s AND version < %(below)s
            ORDER BY version LIMIT %(limit)s
    ) AS oldest
    WHERE before_it < %(bytes)s
    ORDER BY version
