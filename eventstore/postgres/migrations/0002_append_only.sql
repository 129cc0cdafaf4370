-- Append-only twice over: the service's role has no right to change events, and a trigger stops
-- everybody else, superusers included, from doing it by mistake.

DO $$
BEGIN
    CREATE ROLE penstock_service NOLOGIN;
EXCEPTION WHEN duplicate_object OR unique_violation THEN
    NULL; -- roles belong to the whole cluster: another store was here before
END
$$;

GRANT USAGE ON SCHEMA es TO penstock_service;
GRANT SELECT ON ALL TABLES IN SCHEMA es TO penstock_service;
GRANT INSERT ON es.events, es.streams, es.categories, es.tags, es.schemas, es.types
    TO penstock_service;
GRANT UPDATE ON es.streams, es.counter, es.lease, es.types TO penstock_service;

CREATE FUNCTION es.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'es.events is append-only: % is not allowed', TG_OP
        USING HINT = 'Facts are corrected by new events.';
END
$$;

CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON es.events
    FOR EACH STATEMENT EXECUTE FUNCTION es.refuse_change();
