-- Bounded side input: bids with what a table says of them now.
CREATE PROJECTION q13 WITH (key = 'event') AS
SELECT b.event, b.auction, b.bidder, b.price, b.date_time, s.value
FROM STREAM bid b JOIN side_input s ON b.auction % 10000 = s.key;
