-- Next positions of a category.
SELECT position FROM es.recorded
    WHERE category = %(category)s AND position > %(after)s AND position <= %(up_to)s
    ORDER BY position LIMIT %(limit)s
