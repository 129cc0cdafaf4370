-- One event by its id.
SELECT position, id, stream, version, category, type, schema_id, data_format, data, subject,
       key_id, metadata, tags, occurred_at, recorded_at
    FROM es.events WHERE id = %(id)s
