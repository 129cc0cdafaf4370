-- Average price for a category: of the highest bid of each auction while it ran.
CREATE PROJECTION q4 WITH (key = 'category') AS
SELECT category, AVG(final) AS final
FROM (
  SELECT MAX(b.price) AS final, a.category
  FROM STREAM auction a JOIN STREAM bid b ON a.id = b.auction
  WHERE b.date_time BETWEEN a.date_time AND a.expires
  GROUP BY a.id, a.category) closed
GROUP BY category;
