-- Last bid of each bidder in each auction.
CREATE PROJECTION q18 WITH (key = 'bidder, auction') AS
SELECT auction, bidder, price, channel, url, date_time, extra
FROM (
  SELECT auction, bidder, price, channel, url, date_time, extra,
    ROW_NUMBER() OVER (PARTITION BY bidder, auction ORDER BY date_time DESC, event DESC) AS place
  FROM STREAM bid) bids
WHERE place <= 1;
