-- Keep a snapshot, in place of one of the same version that stands for other events.
INSERT INTO es.snapshots
    (stream, decider, first_version, version, position, recorded_at, shapes, state)
VALUES (%(stream)s, %(decider)s, %(first_version)s, %(version)s, %(position)s, %(recorded_at)s,
    %(shapes)s, %(state)s)
ON CONFLICT (stream, decider, version) DO UPDATE
SET (first_version, position, recorded_at, shapes, state, made_at) =
    (excluded.first_version, excluded.position, excluded.recorded_at, excluded.shapes,
    excluded.state, clock_timestamp())
