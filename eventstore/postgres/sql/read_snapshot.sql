-- The snapshot of a stream by one decider's code, and whether the stream shows all its events.
-- $stream text, $decider text
SELECT kept.first_version, kept.version, kept.position, kept.recorded_at,
    kept.shapes::text, kept.state::text,
    coalesce(NOT (s.deleted OR s.tombstoned) AND s.truncate_before = 0
        AND s.max_age_s IS NULL AND s.max_count IS NULL, false) AS whole_stream
FROM es.snapshots AS kept
LEFT JOIN es.streams AS s USING (stream)
WHERE stream = %(stream)s AND kept.decider = %(decider)s
