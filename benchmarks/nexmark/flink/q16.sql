SELECT channel, DATE_FORMAT(date_time, 'yyyy-MM-dd') AS `day`, MAX(DATE_FORMAT(date_time,
  'HH:mm')) AS `minute`, COUNT(*) AS total_bids, COUNT(*) FILTER (WHERE price < 10000) AS
  rank1_bids, COUNT(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids, COUNT(*)
  FILTER (WHERE price >= 1000000) AS rank3_bids, COUNT(DISTINCT bidder) AS total_bidder,
  COUNT(DISTINCT bidder) FILTER (WHERE price < 10000) AS rank1_bidder, COUNT(DISTINCT bidder)
  FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bidder, COUNT(DISTINCT bidder)
  FILTER (WHERE price >= 1000000) AS rank3_bidder, COUNT(DISTINCT auction) AS total_auction,
  COUNT(DISTINCT auction) FILTER (WHERE price < 10000) AS rank1_auction, COUNT(DISTINCT auction)
  FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_auction, COUNT(DISTINCT auction)
  FILTER (WHERE price >= 1000000) AS rank3_auction
FROM bid
GROUP BY channel, DATE_FORMAT(date_time, 'yyyy-MM-dd')
