-- Hot items: the auctions with the most bids of each window.
CREATE PROJECTION q5 WITH (key = 'auction, starttime') AS
SELECT counted.auction, counted.num, counted.starttime
FROM (
  SELECT auction, COUNT(*) AS num, window_start AS starttime
  FROM STREAM bid GROUP BY auction, HOP(date_time, '2 seconds', '10 seconds')) counted
JOIN (
  SELECT MAX(num) AS maxn, starttime
  FROM (
    SELECT auction, COUNT(*) AS num, window_start AS starttime
    FROM STREAM bid GROUP BY auction, HOP(date_time, '2 seconds', '10 seconds')) inner_counts
  GROUP BY starttime) most
ON counted.starttime = most.starttime AND counted.num >= most.maxn;
