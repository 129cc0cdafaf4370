-- Highest bid of each ten seconds.
CREATE PROJECTION q7 WITH (key = 'event') AS
SELECT b.event, b.auction, b.price, b.bidder, b.date_time, b.extra
FROM STREAM bid b JOIN (
  SELECT MAX(price) AS maxprice, window_end AS until
  FROM STREAM bid GROUP BY TUMBLE(date_time, '10 seconds')) most
ON b.price = most.maxprice
WHERE b.date_time BETWEEN most.until - INTERVAL '10' SECOND AND most.until;
