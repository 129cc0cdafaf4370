-- Part of one stream in order.
SELECT position, id, stream, version, category, type, schema_id, data_format, data, subject,
       key_id, metadata, tags, occurred_at, recorded_at
    FROM es.events
    WHERE stream = %(stream)s AND version >= %(from_version)s
    ORDER BY version LIMIT %(limit)s
