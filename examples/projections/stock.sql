-- What of each article is in stock: deliveries add to it, orders take from it.
CREATE PROJECTION stock WITH (key = 'article') AS
SELECT article, SUM(pieces) AS pieces, COUNT_IF(pieces < 0) AS orders
FROM (
  SELECT article, pieces FROM STREAM events.warehouse.delivered
  UNION ALL
  SELECT article, -pieces FROM STREAM events.purchase.placed) moved
GROUP BY article;
