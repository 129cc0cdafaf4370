package penstock.connect;

import io.debezium.connector.postgresql.PostgresType;
import io.debezium.connector.postgresql.connection.PostgresConnection;
import io.debezium.document.Document;
import io.debezium.document.DocumentReader;
import io.debezium.document.DocumentWriter;
import io.debezium.document.Value;
import io.debezium.relational.TableId;
import io.debezium.relational.Tables.TableFilter;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.sql.SQLException;
import java.util.HashMap;
import java.util.Map;

/**
 * Describes columns whose type Debezium does not see: arrays have dimensions and items, a domain is
 * taken for a type of its own.
 *
 * <p>The catalog knows a type by the oid that the WAL names, whatever became of the column since. What
 * is no longer there, and how many dimensions an array was declared with, the messages say that tell
 * of DDL: they stand in the WAL before the rows that they are about.
 */
final class ColumnTypes {
    private static final String DDL = "penstock.ddl";
    private static final String BY_OID = """
            WITH RECURSIVE base AS (
                SELECT t.oid AS type, ?::int AS modifier,
                       coalesce((SELECT a.attndims FROM pg_catalog.pg_attribute a
                                  WHERE a.attrelid = ?::oid AND a.attname = ? AND a.atttypid = t.oid
                                    AND a.attnum > 0), 0)::int AS dimensions,
                       false AS is_array
                  FROM pg_catalog.pg_type t WHERE t.oid = ?::oid
                UNION ALL
                SELECT coalesce(e.oid, t.typbasetype),
                       CASE WHEN e.oid IS NULL AND t.typtypmod >= 0 THEN t.typtypmod ELSE b.modifier END,
                       CASE WHEN b.is_array THEN b.dimensions
                            ELSE greatest(b.dimensions, t.typndims) END,
                       b.is_array OR e.oid IS NOT NULL
                  FROM base b JOIN pg_catalog.pg_type t ON t.oid = b.type
                  LEFT JOIN pg_catalog.pg_type e ON e.typarray = t.oid AND NOT b.is_array
                 WHERE t.typtype = 'd' OR e.oid IS NOT NULL
            )
            SELECT t.typname, t.typtype::text, b.modifier,
                   CASE WHEN b.is_array THEN greatest(b.dimensions, 1) ELSE 0 END, t.typdelim::text
              FROM base b JOIN pg_catalog.pg_type t ON t.oid = b.type
             WHERE t.typtype <> 'd'
               AND (b.is_array OR NOT EXISTS (SELECT FROM pg_catalog.pg_type e WHERE e.typarray = t.oid))
            """;

    /** What is read of a column: enough for the lake's type of it. */
    private record Described(String type, String kind, int modifier, int dimensions, String delimiter) {
        String text() {
            Document written = Document.create("type", type, "kind", kind, "modifier", modifier,
                    "dimensions", dimensions, "delimiter", delimiter);
            try {
                return DocumentWriter.defaultWriter().write(written);
            } catch (IOException error) {
                throw new IllegalStateException(error);
            }
        }
    }

    private final PostgresConnection catalog;
    private final TableFilter captured;
    /** By a table's oid and a column's name, what the last message about the table said. */
    private final Map<Integer, Map<String, Described>> told = new HashMap<>();

    ColumnTypes(PostgresConnection catalog, TableFilter captured) {
        this.catalog = catalog;
        this.captured = captured;
    }

    /** Takes a logical message of the WAL in, where it tells of a captured table. */
    void take(ByteBuffer message) {
        message.position(message.position() + 1 + Byte.BYTES + Long.BYTES);
        if (!DDL.equals(RelationsOfWal.name(message))) {
            return;
        }
        byte[] content = new byte[message.getInt()];
        message.get(content);
        Document table;
        try {
            table = DocumentReader.defaultReader().read(new String(content, StandardCharsets.UTF_8));
        } catch (IOException error) {
            return; // Whoever reads the topic says so.
        }
        Number oid = table.getNumber("oid");
        if (oid == null) {
            return;
        }
        if (!table.has("columns")
                || !captured.isIncluded(new TableId(null, table.getString("schema"), table.getString("table")))) {
            told.remove(oid.intValue());
            return;
        }
        Map<String, Described> columns = new HashMap<>();
        table.getArray("columns").streamValues().map(Value::asDocument)
                .forEach(column -> columns.put(column.getString("name"), new Described(column.getString("type"),
                        column.getString("kind"), column.getInteger("modifier"), column.getInteger("dimensions"),
                        column.getString("delimiter"))));
        told.put(oid.intValue(), columns);
    }

    /** Returns the description of a column of such a type, for {@link PostgresText}; null of any other. */
    String of(int table, String column, PostgresType type, int oid, int modifier) throws SQLException {
        boolean known = type != PostgresType.UNKNOWN;
        boolean isArray = known && type.getRootType().isArrayType();
        if (known && !isArray && (type.isRootType() || PostgresText.isWhole(type.getRootType().getOid()))) {
            return null;
        }
        Described said = told.getOrDefault(table, Map.of()).get(column);
        Described found = known ? byOid(table, column, oid, modifier) : null;
        if (found == null) {
            return said == null ? null : said.text();
        }
        if (isArray && type.isRootType() && found.dimensions() == 0) {
            return null; // It only looks like an array, as int2vector does.
        }
        boolean same = said != null && said.type().equals(found.type()) && said.kind().equals(found.kind());
        return (same ? said : found).text();
    }

    private Described byOid(int table, String column, int oid, int modifier) throws SQLException {
        if (!catalog.connection().getAutoCommit()) {
            // A transaction that is open since before the DDL may not see what it made.
            catalog.connection().commit();
        }
        return catalog.prepareQueryAndMap(BY_OID, statement -> {
            statement.setInt(1, modifier);
            statement.setLong(2, Integer.toUnsignedLong(table));
            statement.setString(3, column);
            statement.setLong(4, Integer.toUnsignedLong(oid));
        }, rows -> rows.next()
                ? new Described(rows.getString(1), rows.getString(2), rows.getInt(3), rows.getInt(4), rows.getString(5))
                : null);
    }
}
