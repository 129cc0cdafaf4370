-- Articles of which fewer than three pieces are left. An article leaves it when more are delivered.
CREATE PROJECTION low_stock WITH (key = 'article', emit = 'when pieces < 3') AS
SELECT article, SUM(pieces) AS pieces
FROM (
  SELECT article, pieces FROM STREAM events.warehouse.delivered
  UNION ALL
  SELECT article, -pieces FROM STREAM events.purchase.placed) moved
GROUP BY article;
