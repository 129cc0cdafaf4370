-- Which of some positions have all that is asked for. Of an event in the archive only the tags'
-- index is here.
SELECT position FROM es.events
    WHERE position = ANY(%(positions)s::bigint[])
      AND (%(category)s::text IS NULL OR category = %(category)s)
      AND (%(types)s::text[] = '{}' OR type = ANY(%(types)s::text[])
           OR category || '.' || type = ANY(%(types)s::text[]))
      AND tags @> %(tags)s::text[]
      AND (%(stream)s::text IS NULL OR stream = %(stream)s)
      AND (%(stream_prefix)s::text IS NULL OR starts_with(stream, %(stream_prefix)s))
UNION ALL
SELECT position FROM es.archived
    WHERE (SELECT min(position) FROM es.archived) IS NOT NULL
      AND position = ANY(%(positions)s::bigint[])
      AND (%(category)s::text IS NULL OR category = %(category)s)
      AND (%(types)s::text[] = '{}' OR type = ANY(%(types)s::text[])
           OR category || '.' || type = ANY(%(types)s::text[]))
      AND NOT EXISTS (
          SELECT FROM unnest(%(tags)s::text[]) AS wanted (tag)
              WHERE NOT EXISTS (SELECT FROM es.tags
                  WHERE tags.tag = wanted.tag AND tags.position = archived.position))
      AND (%(stream)s::text IS NULL OR stream = %(stream)s)
      AND (%(stream_prefix)s::text IS NULL OR starts_with(stream, %(stream_prefix)s))
    ORDER BY position
