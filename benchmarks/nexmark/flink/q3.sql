SELECT a.id, p.name, p.city, p.state
FROM auction a
JOIN person p
ON a.seller = p.id
WHERE a.category = 10 AND p.state IN ('or', 'id', 'ca')
