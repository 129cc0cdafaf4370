-- One event in the archive by its id.
SELECT position, store_id, coalesce(bytes, 4096) FROM es.archived WHERE id = %(id)s
