-- Selection: bids for chosen auctions.
CREATE PROJECTION q2 WITH (key = 'event') AS
SELECT event, auction, price FROM STREAM bid WHERE auction % 123 = 0;
