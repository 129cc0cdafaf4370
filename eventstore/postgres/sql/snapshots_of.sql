-- What the snapshots of a stream by one decider's code stand for.
-- $stream text, $decider text
SELECT first_version, version, shapes::text FROM es.snapshots
    WHERE stream = %(stream)s AND decider = %(decider)s
