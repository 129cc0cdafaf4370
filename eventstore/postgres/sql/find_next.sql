-- Next positions of all events.
SELECT position FROM es.events
    WHERE position > %(after)s AND position <= %(up_to)s
    ORDER BY position LIMIT %(limit)s
