-- A writer that has the lease appends nothing once somebody has found that the store lost events.

-- Takes the append lock for a writer that believes to hold the lease `number` and to know the head
-- `before`, and returns the time of what it appends. ES010 when any of it is not so, or when somebody
-- found that the store lost events: then it has to look first.
CREATE OR REPLACE FUNCTION es.enter(number bigint, before bigint) RETURNS timestamptz
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    moment timestamptz;
BEGIN
    PERFORM pg_advisory_xact_lock(7305801002);
    SELECT greatest(clock_timestamp(), counter.recorded_at) INTO moment
        FROM es.counter, es.lease, es.store
        WHERE counter.position = enter.before AND lease.number = enter.number
          AND store.known_head IS NULL;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the head or the writer is another by now' USING ERRCODE = 'ES010';
    END IF;
    RETURN moment;
END
$$;
