import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.DatabaseMetaData;
import java.sql.Date;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.sql.Timestamp;
import java.sql.Types;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.TimeUnit;

/**
 * Checks of Arrow's JDBC driver against a server. For each check it prints {@code ok NAME}, or
 * {@code FAILED NAME} and what went wrong; tests/python/server/test_jdbc.py reads that.
 *
 * <p>{@code java JdbcChecks.java checks HOST:PORT ENDLESS-SQL}; {@code java JdbcChecks.java
 * reconnect HOST:PORT} and {@code … lost HOST:PORT}; {@code java JdbcChecks.java login HOST:PORT}, where each line of standard
 * input is a user name, a tab and a password.
 */
public final class JdbcChecks {
    private interface Check {
        void run() throws Exception;
    }

    private final String server;
    private final String endless;

    private JdbcChecks(String server, String endless) {
        this.server = server;
        this.endless = endless;
    }

    public static void main(String[] arguments) throws Exception {
        JdbcChecks checks = new JdbcChecks(arguments[1], arguments.length > 2 ? arguments[2] : "");
        switch (arguments[0]) {
            case "checks" -> checks.all();
            case "reconnect" -> checks.reconnect();
            case "login" -> checks.login();
            case "lost" -> checks.lost();
            default -> throw new IllegalArgumentException(arguments[0]);
        }
    }

    private void all() {
        Map<String, Check> checks = new LinkedHashMap<>();
        checks.put("connect", this::connect_);
        checks.put("tables", this::tables);
        checks.put("columns", this::columns);
        checks.put("primary_keys", this::primaryKeys);
        checks.put("all_types", this::allTypes);
        checks.put("parameters", this::parameters);
        checks.put("literals", this::literals);
        checks.put("moments", this::moments);
        checks.put("fresh_plans", this::freshPlans);
        checks.put("getters", this::getters);
        checks.put("result_columns", this::resultColumns);
        checks.put("updates", this::updates);
        checks.put("batches", this::batches);
        checks.put("errors", this::errors);
        checks.put("cancel", this::cancel);
        checks.put("many_rows", this::manyRows);
        checks.forEach((name, check) -> {
            try {
                check.run();
                System.out.println("ok " + name);
            } catch (Throwable thrown) {
                System.out.println("FAILED " + name);
                thrown.printStackTrace(System.out);
            }
            System.out.flush();
        });
        System.exit(0);
    }

    private Connection connect(String... login) throws SQLException {
        Properties properties = new Properties();
        properties.put("useEncryption", "false");
        if (login.length > 0) {
            properties.put("user", login[0]);
            properties.put("password", login[1]);
        }
        return DriverManager.getConnection("jdbc:arrow-flight-sql://" + server, properties);
    }

    private static void expect(Object expected, Object actual) {
        if (!Objects.equals(expected, actual)) {
            throw new AssertionError("expected " + expected + ", got " + actual);
        }
    }

    private static void execute(Connection connection, String sql) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            statement.execute(sql);
        }
    }

    private static List<List<Object>> rows(ResultSet result) throws SQLException {
        List<List<Object>> rows = new ArrayList<>();
        while (result.next()) {
            List<Object> row = new ArrayList<>();
            for (int column = 1; column <= result.getMetaData().getColumnCount(); column++) {
                row.add(result.getObject(column));
            }
            rows.add(row);
        }
        return rows;
    }

    private static List<List<Object>> query(Connection connection, String sql) throws SQLException {
        try (Statement statement = connection.createStatement();
                ResultSet result = statement.executeQuery(sql)) {
            return rows(result);
        }
    }

    private static Set<String> names(ResultSet result, String column) throws SQLException {
        Set<String> names = new TreeSet<>();
        try (result) {
            while (result.next()) {
                names.add(result.getString(column));
            }
        }
        return names;
    }

    private void connect_() throws SQLException {
        try (Connection connection = connect()) {
            expect(true, connection.isValid(10));
            expect("flashmesh", connection.getMetaData().getDatabaseProductName());
            expect(List.of(List.of(1, "x")), query(connection, "SELECT CAST(1 AS INT), 'x'"));
        }
    }

    private void tables() throws SQLException {
        try (Connection connection = connect()) {
            execute(connection, "CREATE TABLE jdbc_tables (id BIGINT PRIMARY KEY)");
            execute(connection, "CREATE VIEW jdbc_view AS SELECT 1 AS one");
            DatabaseMetaData metadata = connection.getMetaData();
            expect(Set.of("jdbc_tables"), names(metadata.getTables(null, "public", "jdbc_t%", null), "TABLE_NAME"));
            String[] views = {"VIEW"};
            expect(Set.of("jdbc_view"), names(metadata.getTables(null, null, "jdbc%", views), "TABLE_NAME"));
            expect(Set.of("TABLE", "VIEW", "LOCAL TEMPORARY", "SYSTEM TABLE"), names(metadata.getTableTypes(), "TABLE_TYPE"));
            expect(Set.of("flashmesh"), names(metadata.getCatalogs(), "TABLE_CAT"));
            expect(true, names(metadata.getSchemas(), "TABLE_SCHEM").containsAll(Set.of("public", "system")));
        }
    }

    private void columns() throws SQLException {
        try (Connection connection = connect()) {
            execute(connection, "CREATE TABLE jdbc_columns (id BIGINT NOT NULL, price DECIMAL(10, 2), name VARCHAR, day DATE)");
            List<String> found = new ArrayList<>();
            try (ResultSet columns = connection.getMetaData().getColumns(null, "public", "jdbc_columns", null)) {
                while (columns.next()) {
                    found.add(columns.getString("COLUMN_NAME") + " " + columns.getInt("DATA_TYPE") + " "
                            + columns.getString("IS_NULLABLE") + " " + columns.getInt("ORDINAL_POSITION"));
                }
            }
            expect(List.of("id " + Types.BIGINT + " NO 1", "price " + Types.DECIMAL + " YES 2",
                    "name " + Types.VARCHAR + " YES 3", "day " + Types.DATE + " YES 4"), found);
        }
    }

    private void primaryKeys() throws SQLException {
        try (Connection connection = connect()) {
            execute(connection, "CREATE TABLE jdbc_keys (a BIGINT, b VARCHAR, PRIMARY KEY (b, a))");
            List<String> found = new ArrayList<>();
            try (ResultSet keys = connection.getMetaData().getPrimaryKeys(null, "public", "jdbc_keys")) {
                while (keys.next()) {
                    found.add(keys.getString("COLUMN_NAME") + " " + keys.getInt("KEY_SEQ"));
                }
            }
            expect(Set.of("b 1", "a 2"), Set.copyOf(found));
            try (ResultSet keys = connection.getMetaData().getImportedKeys(null, "public", "jdbc_keys")) {
                expect(false, keys.next());
            }
        }
    }

    private void allTypes() throws SQLException {
        String sql = """
                SELECT true AS a, arrow_cast(-1, 'Int8') AS b, arrow_cast(-1, 'Int16') AS c, arrow_cast(-1, 'Int32') AS d,
                       arrow_cast(-1, 'Int64') AS e, arrow_cast(200, 'Int16') AS f, arrow_cast(0.5, 'Float32') AS g,
                       arrow_cast(-1e300, 'Float64') AS h, CAST('12.50' AS DECIMAL(10, 2)) AS i, 'Grüße' AS j, X'00ff' AS k,
                       DATE '2024-02-29' AS l, TIMESTAMP '2024-02-29T12:30:15.123' AS m, [1, 2] AS n,
                       arrow_cast('d', 'Dictionary(Int32, Utf8)') AS o, CAST(NULL AS BIGINT) AS p
                """;
        try (Connection connection = connect();
                Statement statement = connection.createStatement();
                ResultSet row = statement.executeQuery(sql)) {
            expect(true, row.next());
            expect(true, row.getBoolean("a"));
            for (String name : List.of("b", "c", "d", "e")) {
                expect(-1L, row.getLong(name));
            }
            expect(200, row.getInt("f"));
            expect(0.5f, row.getFloat("g"));
            expect(-1e300, row.getDouble("h"));
            expect(new BigDecimal("12.50"), row.getBigDecimal("i"));
            expect("Grüße", row.getString("j"));
            expect(true, Arrays.equals(new byte[] {0, -1}, row.getBytes("k")));
            expect("2024-02-29", row.getDate("l").toString());
            expect("2024-02-29 12:30:15.123", row.getTimestamp("m").toString());
            expect("[1,2]", row.getString("n"));
            expect("d", row.getString("o"));
            expect(0L, row.getLong("p"));
            expect(true, row.wasNull());
            expect(false, row.next());
        }
    }

    private void parameters() throws SQLException {
        try (Connection connection = connect()) {
            execute(connection, "CREATE TABLE jdbc_parameters AS SELECT value AS id, 'row ' || value AS name FROM generate_series(1, 100) AS s(value)");
            String sql = "SELECT id, name FROM jdbc_parameters WHERE id > ? AND name <> ? ORDER BY id";
            try (PreparedStatement statement = connection.prepareStatement(sql)) {
                expect(2, statement.getParameterMetaData().getParameterCount());
                for (long low : new long[] {97, 98}) {
                    statement.setLong(1, low);
                    statement.setString(2, "row 99");
                    List<List<Object>> expected = new ArrayList<>();
                    for (long id = low + 1; id <= 100; id++) {
                        if (id != 99) {
                            expected.add(List.of(id, "row " + id));
                        }
                    }
                    try (ResultSet result = statement.executeQuery()) {
                        expect(expected, rows(result));
                    }
                }
            }
            try (PreparedStatement statement = connection.prepareStatement("SELECT id FROM jdbc_parameters WHERE id = ?")) {
                statement.setNull(1, Types.BIGINT);
                try (ResultSet result = statement.executeQuery()) {
                    expect(false, result.next());
                }
            }
        }
    }

    /** The rows of a query with parameters, each set by the setter that fits its class. */
    private static List<List<Object>> prepared(Connection connection, String sql, Object... values) throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement(sql)) {
            for (int i = 0; i < values.length; i++) {
                Object value = values[i];
                if (value instanceof Integer number) {
                    statement.setInt(i + 1, number);
                } else if (value instanceof Long number) {
                    statement.setLong(i + 1, number);
                } else if (value instanceof Double number) {
                    statement.setDouble(i + 1, number);
                } else if (value instanceof BigDecimal number) {
                    statement.setBigDecimal(i + 1, number);
                } else if (value instanceof Timestamp moment) {
                    statement.setTimestamp(i + 1, moment);
                } else if (value instanceof Date day) {
                    statement.setDate(i + 1, day);
                } else {
                    statement.setString(i + 1, value.toString());
                }
            }
            try (ResultSet result = statement.executeQuery()) {
                return rows(result);
            }
        }
    }

    private void literals() throws SQLException {
        try (Connection connection = connect()) {
            execute(connection, "CREATE TABLE jdbc_literals (qty INT, price DECIMAL(10, 2), day DATE, name VARCHAR)");
            execute(connection, "INSERT INTO jdbc_literals VALUES (3, 10.00, DATE '2024-05-06', 'tea'), (4, 1.24, DATE '2024-05-07', 'milk')");
            expect(List.of(List.of(3)), prepared(connection, "SELECT qty FROM jdbc_literals ORDER BY qty LIMIT ?", 1));
            expect(List.of(List.of(4)), prepared(connection, "SELECT qty FROM jdbc_literals ORDER BY qty LIMIT ? OFFSET ?", 1L, 1L));
            expect(List.of(List.of("ab")), prepared(connection, "SELECT ? || ?", "a", "b"));
            expect(List.of(List.of(3L)), prepared(connection, "SELECT ? + ?", 1L, 2L));
            expect(List.of(List.of(true)), prepared(connection, "SELECT ? = ?", "a", "a"));
            expect(List.of(List.of(4)), prepared(connection, "SELECT qty FROM jdbc_literals WHERE price = ?", new BigDecimal("1.24")));
            expect(List.of(), prepared(connection, "SELECT qty FROM jdbc_literals WHERE qty = ?", (1L << 32) + 3));
            expect(List.of(List.of(4)), prepared(connection, "SELECT qty FROM jdbc_literals WHERE qty >= CAST(? AS DOUBLE)", 3.5));
        }
    }

    private void moments() throws SQLException {
        try (Connection connection = connect()) {
            execute(connection, "CREATE TABLE jdbc_moments (id INT, ns TIMESTAMP, us TIMESTAMP(6), s TIMESTAMP(0), t TIME)");
            Timestamp moment = Timestamp.valueOf("2024-05-06 23:00:00");
            try (PreparedStatement insert = connection.prepareStatement("INSERT INTO jdbc_moments VALUES (?, ?, ?, ?, ?)")) {
                insert.setInt(1, 1);
                insert.setTimestamp(2, moment);
                insert.setTimestamp(3, moment);
                insert.setTimestamp(4, moment);
                insert.setTime(5, java.sql.Time.valueOf("12:30:15"));
                expect(1, insert.executeUpdate());
            }
            expect(List.of(List.of("2024-05-06 23:00:00", "2024-05-06 23:00:00", "2024-05-06 23:00:00", "12:30:15")),
                    query(connection, "SELECT CAST(ns AS VARCHAR), CAST(us AS VARCHAR), CAST(s AS VARCHAR), CAST(t AS VARCHAR) FROM jdbc_moments"));
            for (String column : List.of("ns", "us", "s")) {
                expect(List.of(List.of(1)), prepared(connection, "SELECT id FROM jdbc_moments WHERE " + column + " = ?", moment));
            }
            expect(List.of(List.of(1)), prepared(connection, "SELECT id FROM jdbc_moments WHERE CAST(ns AS DATE) = ?", Date.valueOf("2024-05-06")));
        }
    }

    private void freshPlans() throws SQLException {
        try (Connection connection = connect()) {
            execute(connection, "CREATE TABLE jdbc_fresh (id BIGINT)");
            try (PreparedStatement count = connection.prepareStatement("SELECT count(*) FROM jdbc_fresh WHERE id > ?")) {
                for (long expected = 0; expected < 3; expected++) {
                    count.setLong(1, 0);
                    try (ResultSet result = count.executeQuery()) {
                        expect(List.of(List.of(expected)), rows(result));
                    }
                    execute(connection, "INSERT INTO jdbc_fresh VALUES (1)");
                }
                execute(connection, "DROP TABLE jdbc_fresh");
                execute(connection, "CREATE TABLE jdbc_fresh AS SELECT 'x' AS name, 5 AS id");
                count.setLong(1, 0);
                try (ResultSet result = count.executeQuery()) {
                    expect(List.of(List.of(1L)), rows(result));
                }
            }
        }
    }

    /** All that DatabaseMetaData tells without being asked for a name. */
    private void getters() throws Exception {
        try (Connection connection = connect()) {
            DatabaseMetaData metadata = connection.getMetaData();
            List<String> failed = new ArrayList<>();
            for (java.lang.reflect.Method method : DatabaseMetaData.class.getMethods()) {
                if (method.getParameterCount() == 0 && method.getDeclaringClass() == DatabaseMetaData.class) {
                    try {
                        if (method.invoke(metadata) instanceof ResultSet result) {
                            result.close();
                        }
                    } catch (java.lang.reflect.InvocationTargetException thrown) {
                        failed.add(method.getName() + ": " + thrown.getCause());
                    }
                }
            }
            expect(List.of(), failed);
            expect(true, metadata.getNumericFunctions().contains("sqrt"));
            expect(true, metadata.getStringFunctions().contains("upper"));
            expect(true, metadata.getTimeDateFunctions().contains("date_trunc"));
            expect(Connection.TRANSACTION_NONE, metadata.getDefaultTransactionIsolation());
            expect(false, metadata.supportsTransactions());
        }
    }

    private void resultColumns() throws SQLException {
        try (Connection connection = connect()) {
            execute(connection, "CREATE TABLE jdbc_result_columns (id BIGINT, price DECIMAL(10, 2), name VARCHAR)");
            execute(connection, "INSERT INTO jdbc_result_columns VALUES (1, 2.50, 'x')");
            try (Statement statement = connection.createStatement();
                    ResultSet result = statement.executeQuery("SELECT t.price, name, id + 1 AS more FROM jdbc_result_columns AS t")) {
                java.sql.ResultSetMetaData columns = result.getMetaData();
                expect("jdbc_result_columns", columns.getTableName(1));
                expect("public", columns.getSchemaName(1));
                expect("flashmesh", columns.getCatalogName(1));
                expect(10, columns.getPrecision(1));
                expect(2, columns.getScale(1));
                expect("jdbc_result_columns", columns.getTableName(2));
                expect(null, columns.getTableName(3));
                expect(false, columns.isAutoIncrement(1));
            }
            try (ResultSet columns = connection.getMetaData().getColumns(null, "public", "jdbc_result_columns", null)) {
                List<String> types = new ArrayList<>();
                while (columns.next()) {
                    types.add(columns.getString("TYPE_NAME"));
                }
                expect(List.of("BIGINT", "DECIMAL", "VARCHAR"), types);
            }
        }
    }

    private void updates() throws SQLException {
        try (Connection connection = connect(); Statement statement = connection.createStatement()) {
            statement.executeUpdate("CREATE TABLE jdbc_updates (id BIGINT, day DATE, at TIMESTAMP, price DECIMAL(10, 2), data BYTEA)");
            expect(2, statement.executeUpdate("INSERT INTO jdbc_updates (id) VALUES (1), (2)"));
            expect(2, statement.executeUpdate("INSERT INTO jdbc_updates SELECT * FROM jdbc_updates"));
            try (PreparedStatement insert = connection.prepareStatement("INSERT INTO jdbc_updates VALUES (?, ?, ?, ?, ?)")) {
                insert.setLong(1, 5);
                insert.setDate(2, Date.valueOf("2024-02-29"));
                insert.setTimestamp(3, Timestamp.valueOf("2024-02-29 12:30:15"));
                insert.setBigDecimal(4, new BigDecimal("1.25"));
                insert.setBytes(5, "x".getBytes(StandardCharsets.UTF_8));
                expect(1, insert.executeUpdate());
            }
            expect(List.of(List.of("2024-02-29", "1.25", "5")),
                    query(connection, "SELECT CAST(day AS VARCHAR), CAST(price AS VARCHAR), CAST(id AS VARCHAR) FROM jdbc_updates WHERE id = 5"));
        }
    }

    private void batches() throws SQLException {
        try (Connection connection = connect()) {
            execute(connection, "CREATE TABLE jdbc_batches (id BIGINT, name VARCHAR)");
            try (PreparedStatement insert = connection.prepareStatement("INSERT INTO jdbc_batches VALUES (?, ?)")) {
                for (int id = 0; id < 1000; id++) {
                    insert.setLong(1, id);
                    if (id % 10 == 0) {
                        insert.setNull(2, Types.VARCHAR);
                    } else {
                        insert.setString(2, "row " + id);
                    }
                    insert.addBatch();
                }
                expect(1000, Arrays.stream(insert.executeBatch()).sum());
            }
            expect(List.of(List.of(1000L, 900L, 499500L)),
                    query(connection, "SELECT count(*), count(name), sum(id) FROM jdbc_batches"));
        }
    }

    private void errors() throws SQLException {
        try (Connection connection = connect()) {
            for (String sql : List.of("SELEC 1", "SELECT * FROM nowhere")) {
                try {
                    query(connection, sql);
                    throw new AssertionError(sql + " was run");
                } catch (SQLException expected) {
                    String word = sql.substring(sql.lastIndexOf(' ') + 1).equals("1") ? "SELEC" : "nowhere";
                    expect(true, String.valueOf(expected).contains(word) || String.valueOf(expected.getCause()).contains(word));
                }
            }
            expect(List.of(List.of(1L)), query(connection, "SELECT 1"));
        }
    }

    private boolean isRunning(Connection connection, String what) throws SQLException {
        String sql = "SELECT 1 FROM system.queries WHERE state = 'running' AND query LIKE '%" + what + "%' AND query NOT LIKE '%system.queries%'";
        return !query(connection, sql).isEmpty();
    }

    private void await(String what, java.util.concurrent.Callable<Boolean> condition) throws Exception {
        long until = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
        while (!condition.call()) {
            if (System.nanoTime() > until) {
                throw new AssertionError("never happened: " + what);
            }
            Thread.sleep(20);
        }
    }

    private void cancel() throws Exception {
        try (Connection connection = connect(); Connection other = connect(); Statement statement = connection.createStatement()) {
            List<Throwable> raised = new ArrayList<>();
            Thread thread = new Thread(() -> {
                try (ResultSet result = statement.executeQuery(endless)) {
                    result.next();
                } catch (Throwable thrown) {
                    raised.add(thrown);
                }
            });
            thread.start();
            await("the query runs", () -> isRunning(other, "jdbc endless"));
            statement.cancel();
            thread.join(60_000);
            expect(1, raised.size());
            await("the query ends", () -> !isRunning(other, "jdbc endless"));
        }
    }

    private void manyRows() throws SQLException {
        try (Connection connection = connect();
                Statement statement = connection.createStatement();
                ResultSet result = statement.executeQuery("SELECT value FROM generate_series(1, 1000000) AS s(value)")) {
            long count = 0;
            long sum = 0;
            while (result.next()) {
                count++;
                sum += result.getLong(1);
            }
            expect(1_000_000L, count);
            expect(500_000_500_000L, sum);
        }
    }

    private void reconnect() throws Exception {
        Connection before = connect();
        execute(before, "CREATE TABLE jdbc_restart AS SELECT CAST(42 AS INT) AS answer");
        System.out.println("connected");
        if (System.in.read() < 0) {
            throw new IllegalStateException("nobody restarted the server");
        }
        try {
            before.close();
        } catch (SQLException expected) {
            // The server that it belonged to is gone.
        }
        try (Connection after = connect()) {
            expect(List.of(List.of(42)), query(after, "SELECT answer FROM jdbc_restart"));
        }
        System.out.println("ok reconnect");
        System.exit(0);
    }

    /** The driver connects anew without a word; what was to be part of a transaction may not commit by itself. */
    private void lost() throws Exception {
        Connection connection = connect();
        execute(connection, "CREATE TABLE jdbc_lost AS SELECT 1 AS a");
        execute(connection, "BEGIN");
        execute(connection, "DELETE FROM jdbc_lost");
        System.out.println("connected");
        if (System.in.read() < 0) {
            throw new IllegalStateException("nobody restarted the server");
        }
        String told = "nothing";
        for (int tries = 0; tries < 100 && !told.contains("lost the session"); tries++) {
            try {
                execute(connection, "INSERT INTO jdbc_lost VALUES (2)");
                told = "it was done";
                break;
            } catch (SQLException error) {
                told = String.valueOf(error);
            }
        }
        if (!told.contains("lost the session")) {
            throw new AssertionError(told);
        }
        expect(List.of(List.of(1L)), query(connection, "SELECT a FROM jdbc_lost"));
        System.out.println("ok lost");
        System.exit(0);
    }

    private void login() throws Exception {
        var lines = new java.io.BufferedReader(new java.io.InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] login = line.split("\t", -1);
            try (Connection connection = connect(login[0], login[1])) {
                expect(List.of(List.of(1L)), query(connection, "SELECT 1"));
                System.out.println("served");
            } catch (SQLException error) {
                System.out.println("refused " + String.valueOf(error).replace('\n', ' '));
            }
        }
        System.exit(0);
    }
}
