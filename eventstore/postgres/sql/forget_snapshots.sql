-- Forget snapshots of some versions, and what other code left long ago.
-- $stream text, $decider text, $gone bigint[]
DELETE FROM es.snapshots
    WHERE stream = %(stream)s AND CASE
        WHEN decider = %(decider)s THEN version = ANY(%(gone)s::bigint[])
        ELSE made_at < clock_timestamp() - interval '7 days'
    END
