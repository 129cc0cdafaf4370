-- Streams by name, in the order of code points, with their last event. Streams that record the life of
-- others are left out.
SELECT page.stream, category, last.version, last.position, last.recorded_at, deleted, tombstoned
    FROM (
        SELECT stream, category, deleted, tombstoned FROM es.streams
            WHERE stream >= %(prefix)s AND stream > %(after)s
              AND (%(behind)s::text IS NULL OR stream < %(behind)s)
              AND right(stream, 9) <> '$metadata'
            ORDER BY stream LIMIT %(limit)s
    ) AS page
    CROSS JOIN LATERAL (
        SELECT version, position, recorded_at FROM es.recorded
            WHERE recorded.stream = page.stream ORDER BY version DESC LIMIT 1
    ) AS last
    ORDER BY page.stream
