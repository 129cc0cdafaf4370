-- Part of one stream, newest first.
SELECT position, id, stream, version, category, type, schema_id, data_format, data, subject,
       key_id, metadata, tags, occurred_at, recorded_at
    FROM es.events
    WHERE stream = %(stream)s AND version BETWEEN %(floor)s AND %(from_version)s
    ORDER BY version DESC LIMIT %(limit)s
