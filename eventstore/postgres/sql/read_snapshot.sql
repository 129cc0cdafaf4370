-- The snapshot of a stream by one decider's code. $stream text, $decider text
SELECT first_version, version, position, recorded_at, shapes::text, state::text
FROM es.snapshots
WHERE stream = %(stream)s AND decider = %(decider)s
