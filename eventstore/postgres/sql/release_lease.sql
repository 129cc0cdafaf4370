-- Let the next writer begin at once.
DELETE FROM es.renewals WHERE number = %(number)s;
UPDATE es.lease SET expires_at = '-infinity' WHERE number = %(number)s;
