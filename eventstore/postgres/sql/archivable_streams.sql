-- Streams that hide something, or had events archived, and the first event still here of each.
SELECT s.stream, s.version, deleted, tombstoned, truncate_before, max_age_s, max_count,
       archived_up_to, first.version
    FROM (
        SELECT * FROM es.heads
            WHERE stream > %(after)s
              AND (deleted OR tombstoned OR truncate_before > 0 OR max_age_s IS NOT NULL
                   OR max_count IS NOT NULL OR archived_up_to > 0)
            ORDER BY stream LIMIT %(limit)s
    ) AS s
    LEFT JOIN LATERAL (
        SELECT min(events.version) AS version FROM es.events WHERE events.stream = s.stream
    ) AS first ON true
    ORDER BY s.stream
