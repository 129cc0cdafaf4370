-- Next positions of any of some types: the first few of each, merged.
SELECT found.position
    FROM unnest(%(types)s::text[]) AS wanted (type)
    CROSS JOIN LATERAL (
        SELECT position FROM es.recorded
            WHERE recorded.type = wanted.type
              AND position > %(after)s AND position <= %(up_to)s
            ORDER BY position LIMIT %(limit)s
    ) AS found
    ORDER BY found.position LIMIT %(limit)s
