SELECT b.event, b.auction, b.price, b.bidder, b.date_time, b.extra
FROM bid b
JOIN (SELECT MAX(price) AS maxprice, window_end AS until_at
FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(date_time), INTERVAL '10' SECOND))
GROUP BY window_start, window_end) m
ON b.price = m.maxprice
WHERE b.date_time BETWEEN m.until_at - INTERVAL '10' SECOND AND m.until_at
