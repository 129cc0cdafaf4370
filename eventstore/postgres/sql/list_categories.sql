-- Categories with their number of streams, counted up to a limit, and their last event. `.` is the
-- character behind `-`.
SELECT category, counted.streams, last.position, last.recorded_at
    FROM es.categories
    CROSS JOIN LATERAL (
        SELECT count(*) AS streams FROM (
            SELECT FROM es.streams
                WHERE streams.stream > (categories.category || '-')
                  AND streams.stream < (categories.category || '.')
                  AND right(streams.stream, 9) <> '$metadata'
                LIMIT %(limit)s
        ) AS few
    ) AS counted
    CROSS JOIN LATERAL (
        SELECT position, recorded_at FROM es.recorded
            WHERE recorded.category = categories.category
            ORDER BY position DESC LIMIT 1
    ) AS last
    ORDER BY category
