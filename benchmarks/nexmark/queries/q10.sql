-- Log to files: bids with the columns by which they are laid out.
CREATE PROJECTION q10 WITH (key = 'event') AS
SELECT event, auction, bidder, price, date_time, extra,
  DATE_FORMAT(date_time, 'yyyy-MM-dd') AS day, DATE_FORMAT(date_time, 'HH:mm') AS minute
FROM STREAM bid;
