-- Local item suggestion: who sells in chosen states and one category.
CREATE PROJECTION q3 WITH (key = 'id') AS
SELECT a.id, p.name, p.city, p.state
FROM STREAM auction a JOIN STREAM person p ON a.seller = p.id
WHERE a.category = 10 AND (p.state = 'or' OR p.state = 'id' OR p.state = 'ca');
