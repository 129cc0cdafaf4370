-- Where customers live and lived, as a partner tells it: changes come late, twice and in any order, and a
-- column that is missing says nothing.
CREATE FLOW partner_customers AS AUTO CDC INTO customers
FROM STREAM(events.partner.customer_told)
KEYS (customer)
IGNORE NULL UPDATES
APPLY AS DELETE WHEN operation = 'DELETE'
SEQUENCE BY version_told
COLUMNS (customer, name, city);

CREATE FLOW partner_moves AS AUTO CDC INTO customer_moves
FROM STREAM(events.partner.customer_told)
KEYS (customer)
IGNORE NULL UPDATES
APPLY AS DELETE WHEN operation = 'DELETE'
SEQUENCE BY version_told
COLUMNS (customer, name, city)
STORED AS SCD TYPE 2
TRACK HISTORY ON (city);

-- The same of our own table, of which the log of the database says what came after what.
CREATE FLOW own_moves AS AUTO CDC INTO staff_moves
FROM STREAM(office.public.staff)
KEYS (id)
APPLY AS DELETE WHEN _operation = 'd'
SEQUENCE BY _lsn
COLUMNS (id, city)
STORED AS SCD TYPE 2;
