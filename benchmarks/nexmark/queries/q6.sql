-- Average selling price by seller: over the last ten closed auctions of each.
CREATE PROJECTION q6 WITH (key = 'auction') AS
SELECT auction, seller,
  AVG(final) OVER (PARTITION BY seller ORDER BY date_time, auction
    ROWS BETWEEN 9 PRECEDING AND CURRENT ROW) AS average
FROM (
  SELECT a.id AS auction, a.seller, b.price AS final, b.date_time
  FROM STREAM auction a JOIN STREAM bid b ON a.id = b.auction
  WHERE b.date_time BETWEEN a.date_time AND a.expires
  QUALIFY ROW_NUMBER() OVER (
    PARTITION BY a.id, a.seller ORDER BY b.price DESC, b.date_time, b.event) = 1) closed;
