-- Stay the writer; no row comes back when another one has taken over.
WITH held AS (
    SELECT number FROM es.lease WHERE number = %(number)s
), last AS (
    SELECT renewal FROM es.renewals WHERE number = %(number)s ORDER BY renewal DESC LIMIT 1
), superseded AS (
    DELETE FROM es.renewals WHERE number = %(number)s AND renewal = (SELECT renewal FROM last)
)
INSERT INTO es.renewals (number, renewal, expires_at)
    SELECT number, coalesce((SELECT renewal FROM last), 0) + 1,
           clock_timestamp() + %(ttl_s)s * interval '1 second'
        FROM held
    RETURNING (SELECT position FROM es.counter);
