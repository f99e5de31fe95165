"""Rows by primary key: point lookups in SQL, and many keys as one command."""

import flashmesh

db = flashmesh.connect()
db.execute("CREATE TABLE account (id BIGINT PRIMARY KEY, owner TEXT, cents BIGINT)")
db.execute("""
    INSERT INTO account
    SELECT value * 7, 'owner ' || value, value * 100 FROM generate_series(1, 200000) AS series(value)
""")

print(db.sql("SELECT * FROM account WHERE id = 700"))
print(db.sql("EXPLAIN SELECT * FROM account WHERE id IN (7, 14, 21)"))
print(db.sql("SELECT sum(cents) FROM lookup('account', (SELECT value * 7 FROM generate_series(1, 1000) AS s(value)))"))

rows = db.table("account").get([7, 14, 21, 22]).to_pylist()  # 22 is nobody's
assert sorted(row["id"] for row in rows) == [7, 14, 21]

try:
    db.execute("INSERT INTO account VALUES (7, 'somebody else', 0)")
except flashmesh.Error as refused:
    print(refused)
