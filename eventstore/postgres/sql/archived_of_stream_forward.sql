-- Events of a stream in the archive, in order.
SELECT position, store_id, coalesce(bytes, 4096) FROM es.archived
    WHERE stream = %(stream)s AND version >= %(from_version)s
    ORDER BY version LIMIT %(limit)s
