-- Keep a command's answer; the first one for a key stays. Forget at most 100 that are too old.
WITH forgotten AS (
    DELETE FROM es.commands
    WHERE key IN (
        SELECT key FROM es.commands WHERE at < clock_timestamp() - %(keep)s::interval
        ORDER BY at LIMIT 100
    )
)
INSERT INTO es.commands (key, fingerprint, answer)
VALUES (%(key)s, %(fingerprint)s, %(answer)s)
ON CONFLICT (key) DO NOTHING
