-- A stream's last version and policy, and the last version of its metadata stream.
SELECT version, deleted, tombstoned, truncate_before, max_age_s, max_count, archived_up_to,
       (SELECT version FROM es.heads WHERE stream = %(metadata)s) AS metadata_version
    FROM es.heads WHERE stream = %(stream)s
