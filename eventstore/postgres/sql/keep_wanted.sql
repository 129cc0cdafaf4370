-- Which of some positions have all that is asked for.
SELECT position FROM es.events
    WHERE position = ANY(%(positions)s::bigint[])
      AND (%(category)s::text IS NULL OR category = %(category)s)
      AND (%(types)s::text[] = '{}' OR type = ANY(%(types)s::text[])
           OR category || '.' || type = ANY(%(types)s::text[]))
      AND tags @> %(tags)s::text[]
      AND (%(stream_prefix)s::text IS NULL OR starts_with(stream, %(stream_prefix)s))
    ORDER BY position
