package penstock.connect;

import io.debezium.snapshot.spi.SnapshotQuery;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/**
 * Has the connector's own snapshot read a table's own rows.
 *
 * <p>Debezium's query names the table, which in PostgreSQL means those that inherit from it (INHERITS)
 * as well: their rows came as the parent's, under keys that several of them may have. A partitioned
 * table has no rows but those of its partitions, so that ONLY, which would be shorter, reads nothing of
 * one; the query itself asks which of the two it is.
 */
public final class OwnRows implements SnapshotQuery {
    @Override
    public String name() {
        return "penstock";
    }

    @Override
    public void configure(Map<String, ?> properties) {
        // There is nothing to choose.
    }

    /** Takes the table and its columns as they are quoted. */
    @Override
    public Optional<String> snapshotQuery(String table, List<String> columns) {
        if (columns.isEmpty()) {
            return Optional.empty();
        }
        String itself = "'" + table.replace("'", "''") + "'::regclass";
        return Optional.of("SELECT " + String.join(", ", columns) + " FROM " + table
                + " WHERE tableoid = " + itself
                + " OR (SELECT c.relkind = 'p' FROM pg_catalog.pg_class c WHERE c.oid = " + itself + ")");
    }
}
