-- Bids with their auctions, of one category.
CREATE PROJECTION q20 WITH (key = 'event') AS
SELECT b.event, b.auction, b.bidder, b.price, b.channel, b.url, b.date_time AS bid_at,
  b.extra AS bid_extra, a.item_name, a.description, a.initial_bid, a.reserve,
  a.date_time AS opened, a.expires, a.seller, a.category, a.extra AS auction_extra
FROM STREAM bid b JOIN STREAM auction a ON b.auction = a.id
WHERE a.category = 10;
