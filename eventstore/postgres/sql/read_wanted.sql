-- Events that one of the alternatives wants, over a bounded range of positions.
SELECT position, id, stream, version, category, type, schema_id, data_format, data, subject,
       key_id, metadata, tags, occurred_at, recorded_at
    FROM es.events
    WHERE position > %(after)s AND position <= %(up_to)s
      AND EXISTS (
          SELECT FROM jsonb_to_recordset(%(wanted)s)
              AS wanted (category text, types text[], tags text[], stream_prefix text)
              WHERE (wanted.category IS NULL OR events.category = wanted.category)
                AND (wanted.types = '{}' OR type = ANY (wanted.types)
                     OR events.category || '.' || type = ANY (wanted.types))
                AND events.tags @> wanted.tags
                AND (wanted.stream_prefix IS NULL OR starts_with(stream, wanted.stream_prefix)))
    ORDER BY position LIMIT %(limit)s
