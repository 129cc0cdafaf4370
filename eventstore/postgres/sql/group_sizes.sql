-- How many bytes events have, by position.
SELECT position, octet_length(data) + octet_length(metadata::text)
    FROM es.events WHERE position = ANY(%(positions)s::bigint[])
UNION ALL
SELECT position, coalesce(bytes, 4096)
    FROM es.archived WHERE position = ANY(%(positions)s::bigint[])
