-- End a round that only looked: a crash that forgets it makes the next one look again.
SET LOCAL synchronous_commit = off;
INSERT INTO es.rounds (subscription, number, scanned_to, finished_to, parked, redelivered)
    SELECT subscription, number + 1, %(scanned_to)s, finished_to, parked, redelivered
        FROM es.rounds WHERE subscription = %(group)s AND number = %(number)s;
DELETE FROM es.rounds WHERE subscription = %(group)s AND number = %(number)s;
COMMIT;
