-- Currency conversion: prices in euros.
CREATE PROJECTION q1 WITH (key = 'event') AS
SELECT event, auction, bidder, 0.908 * price AS price, date_time, extra FROM STREAM bid;
