-- The number of each bid's channel.
CREATE PROJECTION q21 WITH (key = 'event') AS
SELECT event, auction, bidder, price, channel,
  CASE WHEN LOWER(channel) = 'apple' THEN '0' WHEN LOWER(channel) = 'google' THEN '1'
    WHEN LOWER(channel) = 'facebook' THEN '2' WHEN LOWER(channel) = 'baidu' THEN '3'
    ELSE REGEXP_EXTRACT(url, '(&|^)channel_id=([^&]*)', 2) END AS channel_id
FROM STREAM bid
WHERE REGEXP_EXTRACT(url, '(&|^)channel_id=([^&]*)', 2) <> ''
  OR LOWER(channel) IN ('apple', 'google', 'facebook', 'baidu');
