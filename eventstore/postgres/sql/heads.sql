-- Last versions and policies of the group's streams, and the categories, read anew.
SELECT stream, version, deleted, tombstoned, truncate_before, max_age_s, max_count,
       archived_up_to
    FROM es.heads WHERE stream = ANY(%(streams)s::text[]);
SELECT category FROM es.categories;
