-- User sessions: bids that follow each other within ten seconds.
CREATE PROJECTION q11 WITH (key = 'bidder, starttime') AS
SELECT bidder, COUNT(*) AS bid_count, window_start AS starttime, window_end AS endtime
FROM STREAM bid GROUP BY bidder, SESSION(date_time, '10 seconds');
