-- Winning bids: the highest bid of each auction while it ran.
CREATE PROJECTION q9 WITH (key = 'id') AS
SELECT id, item_name, description, initial_bid, reserve, opened, expires, seller, category, extra,
  auction, bidder, price, bid_date_time, bid_extra
FROM (
  SELECT a.id, a.item_name, a.description, a.initial_bid, a.reserve, a.date_time AS opened,
    a.expires, a.seller, a.category, a.extra, b.auction, b.bidder, b.price,
    b.date_time AS bid_date_time, b.extra AS bid_extra,
    ROW_NUMBER() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.date_time, b.event) AS place
  FROM STREAM auction a JOIN STREAM bid b ON a.id = b.auction
  WHERE b.date_time BETWEEN a.date_time AND a.expires) bids
WHERE place <= 1;
