-- Change how a group hands out; what it is made of stays.
UPDATE es.subscriptions
    SET max_deliveries = %(max_deliveries)s, ack_timeout = %(ack_timeout)s, backoff = %(backoff)s,
        backoff_cap = %(backoff_cap)s, max_in_flight = %(max_in_flight)s,
        look_ahead = %(look_ahead)s, max_parked = %(max_parked)s
    WHERE name = %(group)s
