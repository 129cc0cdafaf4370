-- Stay the writer; no row comes back when another one has taken over.
UPDATE es.lease SET expires_at = clock_timestamp() + %(ttl_s)s * interval '1 second'
    WHERE number = %(number)s
    RETURNING (SELECT position FROM es.counter);
