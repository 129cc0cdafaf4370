SELECT id, item_name, seller, category, auction, bidder, price, bid_at
FROM (SELECT a.*, b.auction, b.bidder, b.price, b.date_time AS bid_at, ROW_NUMBER() OVER
  (PARTITION BY a.id ORDER BY b.price DESC, b.date_time ASC) AS place
FROM auction a
JOIN bid b
ON a.id = b.auction
WHERE b.date_time BETWEEN a.date_time AND a.expires)
WHERE place <= 1
