-- Friends of friends, paths and ranks: `flashmesh -f examples/08_graph.sql`.

CREATE TABLE person AS
SELECT value AS id, 'person ' || value AS name FROM generate_series(1, 20000) AS series(value);

CREATE TABLE knows AS
SELECT a.value AS a, 1 + (a.value * k.value * 7919 + k.value) % 20000 AS b, 2020 + (a.value + k.value) % 6 AS since
FROM generate_series(1, 20000) AS a(value), generate_series(1, 8) AS k(value);

-- Neighbour lists of both directions, in pages; inserts keep them up.
CREATE INDEX friends ON knows USING adjacency (a, b);

-- Everyone within two hops of person 1, with names.
SELECT f.depth, count(*) AS people, min(p.name) AS first
FROM expand('friends', 1, 2) f JOIN person p ON p.id = f.vertex
GROUP BY f.depth ORDER BY f.depth;

-- A shortest path, and the edges on it.
SELECT s.step, p.name FROM shortest_path('friends', 1, 19999) s JOIN person p ON p.id = s.vertex ORDER BY s.step;
SELECT k.a, k.b, k.since FROM fetch('knows', (SELECT edge FROM shortest_path('friends', 1, 19999))) k;

-- Levels of a breadth-first search, components, ranks.
SELECT depth, count(*) AS people FROM bfs('friends', 1) GROUP BY depth ORDER BY depth;
SELECT count(DISTINCT component) AS components FROM connected_components('friends');
SELECT vertex, round(rank, 6) AS rank FROM page_rank('friends') ORDER BY rank DESC, vertex LIMIT 3;
