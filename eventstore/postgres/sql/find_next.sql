-- Next positions of all events.
SELECT position FROM es.recorded
    WHERE position > %(after)s AND position <= %(up_to)s
    ORDER BY position LIMIT %(limit)s
