-- Forecasting revenue change. One total needs a key: the name of its scope.
CREATE PROJECTION q6 WITH (key = 'scope') AS
SELECT 'all' AS scope, SUM(l_extendedprice * l_discount) AS revenue
FROM lineitem
WHERE l_shipdate >= DATE '1994-01-01'
  AND l_shipdate < DATE '1994-01-01' + INTERVAL '1' YEAR
  AND l_discount BETWEEN 0.06 - 0.01 AND 0.06 + 0.01
  AND l_quantity < 24
GROUP BY 'all';
