-- Files and flash tables: `flashmesh -f examples/02_load_files.sql`.

-- Some rows as a Parquet file; it is written beside where you run this.
COPY (
    SELECT value AS id, value % 50 AS store, DATE '2026-01-01' + CAST(value % 365 AS INT) AS day,
           CAST(value * 7919 % 100000 AS DECIMAL(10, 2)) / 100 AS amount
    FROM generate_series(1, 200000) AS series(value)
) TO 'sales.parquet';

-- SQL straight on the file.
SELECT count(*), sum(amount) FROM 'sales.parquet';

-- The same rows as a table on flash. The load is one commit: all of it or nothing.
CREATE TABLE sales AS SELECT * FROM 'sales.parquet';
INSERT INTO sales VALUES (200001, 7, DATE '2026-12-31', 19.99);

SELECT store, count(*) AS sales, sum(amount) AS total
FROM sales WHERE day >= DATE '2026-12-01' GROUP BY store ORDER BY total DESC LIMIT 3;
