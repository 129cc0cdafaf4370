-- Every ticket with its subject, and its answer once there is one.
CREATE PROJECTION tickets WITH (key = 'ticket') AS
SELECT o.entity_id AS ticket, o.subject, o.urgent, c.answer
FROM STREAM events.ticket.opened o
LEFT JOIN STREAM events.ticket.closed c
  ON c.entity_id = o.entity_id AND c.occurred_at BETWEEN o.occurred_at AND o.occurred_at + INTERVAL '90 days';
