-- The ten highest bids of each auction.
CREATE PROJECTION q19 WITH (key = 'auction, place') AS
SELECT auction, bidder, price, channel, url, date_time, extra, place
FROM (
  SELECT auction, bidder, price, channel, url, date_time, extra,
    ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC, event) AS place
  FROM STREAM bid) bids
WHERE place <= 10;
