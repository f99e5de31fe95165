-- What runs beside the pages, and why the rest does not: `flashmesh -f examples/03_what_was_pushed.sql`.

CREATE TABLE log AS
SELECT value AS id, to_timestamp_seconds(1767225600 + value) AS at,
       CASE WHEN value % 1000 = 0 THEN 'ERROR' WHEN value % 50 = 0 THEN 'WARN' ELSE 'INFO' END AS level,
       'request ' || value || ' took ' || (value * 7919 % 997) || ' ms' AS line
FROM generate_series(1, 500000) AS series(value);

-- Filter and aggregate are pushed: a handful of numbers leaves the store.
EXPLAIN SELECT level, count(*) FROM log WHERE line LIKE '%took 99% ms' GROUP BY level;

-- Programs have no remainder: that filter stays above the scan, and EXPLAIN says so.
EXPLAIN SELECT count(*) FROM log WHERE level = 'ERROR' AND id % 7 = 3;

-- What it cost: pages read and skipped, bytes from flash and to the host.
EXPLAIN ANALYZE SELECT id, line FROM log WHERE level = 'ERROR' ORDER BY id DESC LIMIT 5;

-- The same with everything above the scan.
SET flashmesh.pushdown = 'never';
EXPLAIN ANALYZE SELECT id, line FROM log WHERE level = 'ERROR' ORDER BY id DESC LIMIT 5;
