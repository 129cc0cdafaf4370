package penstock.connect;

import io.debezium.connector.postgresql.PostgresConnectorConfig;
import io.debezium.connector.postgresql.PostgresSchema;
import io.debezium.connector.postgresql.connection.PostgresConnection;
import io.debezium.relational.RelationalDatabaseSchema;
import io.debezium.relational.RelationalTableFilters;
import io.debezium.relational.TableId;
import io.debezium.relational.Tables.TableFilter;
import java.lang.reflect.Field;
import java.sql.SQLException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.BooleanSupplier;

/**
 * Tells columns of one table apart whose names differ only by case.
 *
 * <p>Debezium looks columns up without regard to case, and stops where two are one to it. The first
 * of them keeps its name, a later one travels as `name, U+F8FF, its number among them`, which is what
 * the lake makes `name__number` of (`schemas.lake_columns`).
 */
final class TwinColumns {
    private static final char MARK = '\uF8FF';
    private static final String ALL = """
            SELECT n.nspname, c.relname, a.attname
              FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
              JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid
             WHERE c.relkind IN ('r', 'p') AND a.attnum > 0 AND NOT a.attisdropped
               AND n.nspname NOT IN ('pg_catalog', 'information_schema')
            """;

    private TwinColumns() {
    }

    /** Returns names that differ by more than case, for those of one table in their order. */
    static List<String> apart(List<String> names) {
        Set<String> all = new HashSet<>();
        names.forEach(name -> all.add(folded(name)));
        Map<String, Integer> numbers = new HashMap<>();
        List<String> apart = new ArrayList<>();
        for (String name : names) {
            String one = folded(name);
            int number = numbers.getOrDefault(one, 0) + 1;
            // One underscore more stands behind names that would be ours.
            while (number > 1 && (all.contains(one + "__" + number) || all.contains(one + "___" + number))) {
                number++;
            }
            numbers.put(one, number);
            apart.add(number == 1 ? name : name + MARK + number);
        }
        return apart;
    }

    /** Returns what the source calls a column. */
    static String real(String name) {
        return name.replaceFirst(MARK + "[0-9]+$", "");
    }

    /**
     * Hides tables with such columns from whatever reads the catalog before the stream begins: it would
     * stop there. The stream describes them itself before their first row.
     */
    static void passBy(PostgresSchema schema, PostgresConnectorConfig config, PostgresConnection catalog,
            BooleanSupplier streams) throws SQLException, ReflectiveOperationException {
        RelationalTableFilters filters = config.getTableFilters();
        TableFilter captured = filters.dataCollectionFilter();
        Set<TableId> hidden = new HashSet<>();
        Set<List<Object>> seen = new HashSet<>();
        catalog.query(ALL, rows -> {
            while (rows.next()) {
                TableId table = new TableId(null, rows.getString(1), rows.getString(2));
                if (captured.isIncluded(table) && !seen.add(List.of(table, folded(rows.getString(3))))) {
                    hidden.add(table);
                }
            }
        });
        if (!hidden.isEmpty()) {
            TableFilter visible = table -> captured.isIncluded(table) && (streams.getAsBoolean() || !hidden.contains(table));
            put(RelationalTableFilters.class, filters, visible);
            put(RelationalDatabaseSchema.class, schema, visible);
        }
    }

    private static void put(Class<?> owner, Object into, TableFilter filter) throws ReflectiveOperationException {
        Field field = owner.getDeclaredField("tableFilter");
        field.setAccessible(true);
        field.set(into, filter);
    }

    /** As {@link String#CASE_INSENSITIVE_ORDER}, by which Debezium finds columns, compares letters. */
    private static String folded(String name) {
        return name.codePoints().map(Character::toUpperCase).map(Character::toLowerCase)
                .collect(StringBuilder::new, StringBuilder::appendCodePoint, StringBuilder::append).toString();
    }
}
