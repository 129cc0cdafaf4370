-- Which of some positions are in the archive.
SELECT position, store_id, coalesce(bytes, 4096) FROM es.archived WHERE position = ANY(%(positions)s::bigint[])
