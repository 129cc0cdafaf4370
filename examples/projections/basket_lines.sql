-- What baskets hold, line by line: each order is one event with all its lines in an array.
CREATE PROJECTION basket_lines WITH (key = 'order_id, place') AS
SELECT order_id, place, line.article, line.pieces
FROM STREAM events.basket.ordered LATERAL VIEW posexplode(lines) t AS place, line;

-- How many pieces of each article were ordered, and in how many lines.
CREATE PROJECTION pieces_ordered WITH (key = 'article') AS
SELECT t.line.article AS article, SUM(t.line.pieces) AS pieces, COUNT(*) AS lines
FROM STREAM events.basket.ordered b CROSS JOIN UNNEST(b.lines) AS t (line)
GROUP BY t.line.article;

-- What is in the baskets that are not ordered yet, with the articles' names as they are now.
CREATE PROJECTION open_baskets WITH (key = 'basket, place') AS
SELECT b.id AS basket, l.place, l.line.pieces, a.title
FROM shop.public.basket b LATERAL VIEW posexplode(b.lines) l AS place, line
JOIN shop.public.article a ON a.id = l.line.article;
