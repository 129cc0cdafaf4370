-- For each condition the newest event behind its position that matches, or none. Every probe is a
-- step into one index, however many events a tag has: the order and the limit say so to the planner.
SELECT number, max(position) FROM (
    SELECT probe.number,
           CASE
               WHEN probe.tag IS NULL THEN
                   (SELECT max(newest.position) FROM es.categories CROSS JOIN LATERAL (
                        SELECT position FROM es.events
                            WHERE category = categories.category AND type = probe.type
                              AND position > probe.after
                            ORDER BY position DESC LIMIT 1) AS newest
                        WHERE probe.category IS NULL OR categories.category = probe.category)
               WHEN probe.type IS NULL THEN
                   (SELECT position FROM es.tags
                        WHERE tag = probe.tag AND position > probe.after
                        ORDER BY position DESC LIMIT 1)
               ELSE
                   (SELECT position FROM es.tags
                        WHERE tag = probe.tag AND type = probe.type AND position > probe.after
                          AND (probe.category IS NULL OR category = probe.category)
                        ORDER BY position DESC LIMIT 1)
           END AS position
        FROM unnest(%(numbers)s::integer[], %(probe_tags)s::text[], %(probe_categories)s::text[],
                    %(probe_types)s::text[], %(afters)s::bigint[])
            AS probe (number, tag, category, type, after)
    UNION ALL
    SELECT number, es.newest_tagged(tags, category, type, after)
        FROM jsonb_to_recordset(%(several)s::jsonb)
            AS probe (number integer, tags text[], category text, type text, after bigint)
) AS answers
    WHERE position IS NOT NULL
    GROUP BY number;
