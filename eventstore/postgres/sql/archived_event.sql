-- One event in the archive by its id.
SELECT position, store_id FROM es.archived WHERE id = %(id)s
