-- The last snapshot of a stream by one decider's code, up to a version and a time where these are
-- given, and whether the stream shows all its events.
-- $stream text, $decider text, $version bigint, $at timestamptz
SELECT kept.first_version, kept.version, kept.position, kept.recorded_at,
    kept.shapes::text, kept.state::text,
    coalesce(NOT (s.deleted OR s.tombstoned) AND s.truncate_before = 0
        AND s.max_age_s IS NULL AND s.max_count IS NULL, false) AS whole_stream
FROM es.snapshots AS kept
LEFT JOIN es.streams AS s USING (stream)
WHERE stream = %(stream)s AND kept.decider = %(decider)s
    AND (%(version)s::bigint IS NULL OR kept.version <= %(version)s::bigint)
    AND (%(at)s::timestamptz IS NULL OR kept.recorded_at <= %(at)s::timestamptz)
ORDER BY kept.version DESC LIMIT 1
