-- Part of the store by position.
SELECT position, id, stream, version, category, type, schema_id, data_format, data, subject,
       key_id, metadata, tags, occurred_at, recorded_at
    FROM es.events
    WHERE position > %(after)s AND position <= %(up_to)s
    ORDER BY position LIMIT %(limit)s
