-- Events that match one of the items (types OR, tags AND), over a bounded range of positions.
SELECT position, id, stream, version, category, type, schema_id, data_format, data, subject,
       key_id, metadata, tags, occurred_at, recorded_at
    FROM es.events
    WHERE position > %(after)s AND position <= %(up_to)s
      AND EXISTS (
          SELECT FROM jsonb_to_recordset(%(items)s) AS item (types text[], tags text[])
              WHERE events.tags @> item.tags
                AND (item.types = '{}' OR type = ANY (item.types)
                     OR category || '.' || type = ANY (item.types)))
    ORDER BY position LIMIT %(limit)s
