-- Keep a snapshot unless a later one of the same events is there; drop what other code left long ago.
WITH forgotten AS (
    DELETE FROM es.snapshots
    WHERE stream = %(stream)s AND decider <> %(decider)s
        AND made_at < clock_timestamp() - interval '7 days'
)
INSERT INTO es.snapshots AS kept
    (stream, decider, first_version, version, position, recorded_at, shapes, state)
VALUES (%(stream)s, %(decider)s, %(first_version)s, %(version)s, %(position)s, %(recorded_at)s,
    %(shapes)s, %(state)s)
ON CONFLICT (stream, decider) DO UPDATE
SET (first_version, version, position, recorded_at, shapes, state, made_at) =
    (excluded.first_version, excluded.version, excluded.position, excluded.recorded_at,
    excluded.shapes, excluded.state, clock_timestamp())
WHERE excluded.version > kept.version
    OR excluded.first_version > kept.first_version
    OR excluded.shapes::text <> kept.shapes::text
