-- The short way of an append: a whole group in one message.

-- Takes the append lock and the positions up to `head` for a writer that believes to hold the lease
-- `number` and to know the head before. ES010 when any of it is not so: then it has to look first.
CREATE FUNCTION es.enter(number bigint, before bigint, head bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(7305801002);
    UPDATE es.counter
        SET position = enter.head, recorded_at = greatest(clock_timestamp(), counter.recorded_at)
        FROM es.lease
        WHERE counter.position = enter.before AND lease.number = enter.number;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the head or the writer is another by now' USING ERRCODE = 'ES010';
    END IF;
END
$$;
REVOKE ALL ON FUNCTION es.enter FROM PUBLIC;
GRANT EXECUTE ON FUNCTION es.enter TO penstock_service;
