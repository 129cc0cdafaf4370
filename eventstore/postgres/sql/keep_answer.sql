-- Keep a command's answer; the first one for a key stays. Forget at most 100 that are too old, and say
-- up to when that is done: what was forgotten before is not passed again, where an old snapshot keeps it.
-- $from timestamptz
WITH bound AS MATERIALIZED (
    SELECT clock_timestamp() - %(keep)s::interval AS at
), old AS MATERIALIZED (
    SELECT key, at FROM es.commands
        WHERE at >= %(from)s::timestamptz AND at < (SELECT at FROM bound)
        ORDER BY at LIMIT 100
), forgotten AS (
    DELETE FROM es.commands WHERE key IN (SELECT key FROM old)
), kept AS (
    INSERT INTO es.commands (key, fingerprint, answer)
        VALUES (%(key)s, %(fingerprint)s, %(answer)s)
        ON CONFLICT (key) DO NOTHING
)
SELECT CASE WHEN count(*) < 100 THEN (SELECT at FROM bound) ELSE max(at) END FROM old
