-- Which of some positions are in the archive.
SELECT position, store_id FROM es.archived WHERE position = ANY(%(positions)s::bigint[])
