-- Part of the store by position, over a bounded range of positions.
SELECT position, id, stream, version, category, type, schema_id, data_format, data, subject,
       key_id, metadata, tags, occurred_at, recorded_at
    FROM es.events
    WHERE position > %(after)s AND position <= %(up_to)s
      AND (%(category)s::text IS NULL OR category = %(category)s)
      AND (%(type)s::text IS NULL OR type = %(type)s)
      AND (%(stream_prefix)s::text IS NULL OR starts_with(stream, %(stream_prefix)s))
    ORDER BY position LIMIT %(limit)s
