-- Calculation: a converted price in a range, the time of day, and how often a letter occurs.
CREATE PROJECTION q14 WITH (key = 'event') AS
SELECT event, auction, bidder, 0.908 * price AS price,
  CASE WHEN HOUR(date_time) >= 8 AND HOUR(date_time) <= 18 THEN 'dayTime'
    WHEN HOUR(date_time) <= 6 OR HOUR(date_time) >= 20 THEN 'nightTime'
    ELSE 'otherTime' END AS bid_time_type,
  date_time, extra, LENGTH(extra) - LENGTH(REPLACE(extra, 'c', '')) AS c_counts
FROM STREAM bid
WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000;
