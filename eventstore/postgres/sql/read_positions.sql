-- Events by their positions, in order.
SELECT position, id, stream, version, category, type, schema_id, data_format, data, subject,
       key_id, metadata, tags, occurred_at, recorded_at
    FROM es.events
    WHERE position = ANY(%(positions)s::bigint[])
    ORDER BY position
