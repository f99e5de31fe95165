import flashmesh

db = flashmesh.connect()  # a temporary database; connect("folder") keeps it
db.sql("""
    CREATE TABLE reading AS
    SELECT value AS id, value % 100 AS sensor, value * 7919 % 10007 / 10.0 AS celsius
    FROM generate_series(1, 1000000) AS series(value)
""")
question = """
    SELECT sensor, count(*) AS readings, max(celsius) AS hottest
    FROM reading WHERE celsius > 990 GROUP BY sensor ORDER BY hottest DESC, sensor LIMIT 3
"""
print(db.sql(question))
print(db.sql("EXPLAIN ANALYZE " + question))
