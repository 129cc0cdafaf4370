-- Streams by name, in the order of code points, with their last event. Streams that record the life of
-- others are left out. LIMIT 1 keeps the last events from being read by any other way than one by one.
SELECT page.stream, category, version, deleted, tombstoned, last.position, last.recorded_at
    FROM (
        SELECT stream, category, version, deleted, tombstoned FROM es.streams
            WHERE stream ~>=~ %(prefix)s AND stream ~>~ %(after)s
              AND (%(behind)s::text IS NULL OR stream ~<~ %(behind)s)
              AND right(stream, 9) <> '$metadata'
            ORDER BY stream USING ~<~ LIMIT %(limit)s
    ) AS page
    CROSS JOIN LATERAL (
        SELECT position, recorded_at FROM es.recorded
            WHERE recorded.stream = page.stream AND recorded.version = page.version
            LIMIT 1
    ) AS last
    ORDER BY page.stream USING ~<~
