-- Next positions of a few streams: the first few of each, merged.
SELECT found.position
    FROM unnest(%(streams)s::text[]) AS wanted (stream)
    CROSS JOIN LATERAL (
        SELECT position FROM es.recorded
            WHERE recorded.stream = wanted.stream
              AND position > %(after)s AND position <= %(up_to)s
            ORDER BY version LIMIT %(limit)s
    ) AS found
    ORDER BY found.position LIMIT %(limit)s
