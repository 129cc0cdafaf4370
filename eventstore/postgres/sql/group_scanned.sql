-- End a round that only looked: a crash that forgets it makes the next one look again.
SET LOCAL synchronous_commit = off;
UPDATE es.subscriptions SET scanned_to = %(scanned_to)s WHERE name = %(group)s;
COMMIT;
