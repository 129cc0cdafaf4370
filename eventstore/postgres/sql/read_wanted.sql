-- Events that one of the alternatives wants, over a bounded range of positions. Of an event in the
-- archive only what is here of it: its data is null.
WITH wanted AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset(%(wanted)s)
        AS wanted (category text, types text[], tags text[], stream text, stream_prefix text)
)
SELECT position, id, stream, version, category, type, schema_id, data_format, data, subject,
       key_id, metadata, tags, occurred_at, recorded_at
    FROM es.events
    WHERE position > %(after)s AND position <= %(up_to)s
      AND EXISTS (
          SELECT FROM wanted
              WHERE (wanted.category IS NULL OR events.category = wanted.category)
                AND (wanted.types = '{}' OR type = ANY (wanted.types)
                     OR events.category || '.' || type = ANY (wanted.types))
                AND events.tags @> wanted.tags
                AND (wanted.stream IS NULL OR events.stream = wanted.stream)
                AND (wanted.stream_prefix IS NULL OR starts_with(events.stream, wanted.stream_prefix)))
UNION ALL
SELECT position, id, stream, version, category, type, 0, 0::smallint, NULL, NULL,
       NULL, '{}', '{}', occurred_at, recorded_at
    FROM es.archived
    WHERE (SELECT min(position) FROM es.archived) IS NOT NULL
      AND position > %(after)s AND position <= %(up_to)s
      AND EXISTS (
          SELECT FROM wanted
              WHERE (wanted.category IS NULL OR archived.category = wanted.category)
                AND (wanted.types = '{}' OR type = ANY (wanted.types)
                     OR archived.category || '.' || type = ANY (wanted.types))
                AND NOT EXISTS (
                    SELECT FROM unnest(wanted.tags) AS asked (tag)
                        WHERE NOT EXISTS (SELECT FROM es.tags
                            WHERE tags.tag = asked.tag AND tags.position = archived.position))
                AND (wanted.stream IS NULL OR archived.stream = wanted.stream)
                AND (wanted.stream_prefix IS NULL OR starts_with(archived.stream, wanted.stream_prefix)))
    ORDER BY position LIMIT %(limit)s
