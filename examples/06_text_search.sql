-- Texts by what they hold, with and without an index: `flashmesh -f examples/06_text_search.sql`.

CREATE TABLE log AS
SELECT value AS id,
       'request ' || value || ' of client ' || md5(CAST(value % 1000 AS VARCHAR)) ||
       CASE WHEN value % 50000 = 77 THEN ' failed: disk-quota' ELSE ' done' END AS line
FROM generate_series(1, 500000) AS series(value);

-- LIKE, contains, regular expressions and several texts at once are searched beside the pages.
SELECT count(*) FROM log WHERE line LIKE '%disk-quota%';
SELECT count(*) FROM log WHERE regexp_like(line, 'failed: (disk|memory)-quota');
SELECT count(*) FROM log WHERE line LIKE '%disk-quota%' OR line LIKE '%memory-quota%';

-- An index of three-byte pieces says which pages may hold a text; inserts keep it up.
CREATE INDEX log_line ON log USING ngram (line);
INSERT INTO log VALUES (500001, 'request 500001 failed: disk-quota');
EXPLAIN ANALYZE SELECT id, line FROM log WHERE line LIKE '%disk-quota%';

-- Where it occurs: the row, and the byte within its text.
SELECT row_id, byte_offset, value FROM matches('log', 'line', 'disk-quota') ORDER BY row_id LIMIT 3;
