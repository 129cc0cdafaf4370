-- Orders that were not shipped within two days. An order is in it from the moment that it is
-- placed, and leaves it when a shipment within the two days becomes known.
CREATE PROJECTION overdue_orders WITH (key = 'order_id') AS
SELECT o.order_id, o.customer, o.occurred_at + INTERVAL 2 DAYS AS due_at
FROM STREAM events.purchase.placed o
WHERE NOT EXISTS (
  SELECT 1 FROM STREAM events.shipping.sent s
  WHERE s.order_id = o.order_id AND s.occurred_at <= o.occurred_at + INTERVAL 2 DAYS);
