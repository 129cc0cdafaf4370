-- Let the next writer begin at once.
UPDATE es.lease SET expires_at = '-infinity' WHERE number = %(number)s;
