SELECT auction, bidder, price, channel, url, date_time, extra, place
FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC) AS place
FROM bid)
WHERE place <= 10
