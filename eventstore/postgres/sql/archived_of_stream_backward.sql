-- Events of a stream in the archive, newest first.
SELECT position, store_id, coalesce(bytes, 4096) FROM es.archived
    WHERE stream = %(stream)s AND version BETWEEN %(floor)s AND %(from_version)s
    ORDER BY version DESC LIMIT %(limit)s
