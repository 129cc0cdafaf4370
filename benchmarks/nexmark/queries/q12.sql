-- Windows in processing time: bids of each bidder in the ten seconds in which they were ingested.
CREATE PROJECTION q12 WITH (key = 'bidder, starttime') AS
SELECT bidder, COUNT(*) AS bid_count, window_start AS starttime, window_end AS endtime
FROM STREAM bid GROUP BY bidder, TUMBLE(ingested_at, '10 seconds');
