-- How one stream stands, and the first event still here of it.
SELECT stream, version, deleted, tombstoned, truncate_before, max_age_s, max_count,
       archived_up_to,
       (SELECT min(events.version) FROM es.events WHERE events.stream = heads.stream)
    FROM es.heads WHERE stream = %(stream)s
