-- Events in the archive, by position.
SELECT position, store_id, coalesce(bytes, 4096) FROM es.archived
    WHERE position > %(after)s AND position <= %(up_to)s
    ORDER BY position LIMIT %(limit)s
