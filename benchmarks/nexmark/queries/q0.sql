-- Pass through: every bid as it is.
CREATE PROJECTION q0 WITH (key = 'event') AS
SELECT event, auction, bidder, price, date_time, extra FROM STREAM bid;
