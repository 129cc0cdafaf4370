package penstock.connect;

import io.debezium.config.Configuration;
import io.debezium.connector.common.CdcSourceTaskContext;
import io.debezium.connector.postgresql.PostgresConnector;
import io.debezium.connector.postgresql.PostgresConnectorConfig;
import io.debezium.connector.postgresql.PostgresConnectorTask;
import io.debezium.connector.postgresql.PostgresOffsetContext;
import io.debezium.connector.postgresql.PostgresPartition;
import io.debezium.connector.postgresql.PostgresSchema;
import io.debezium.connector.postgresql.connection.MessageDecoderContext;
import io.debezium.connector.postgresql.connection.PostgresConnection;
import io.debezium.connector.postgresql.connection.PostgresReplicationConnection;
import io.debezium.connector.postgresql.connection.ReplicationConnection;
import io.debezium.pipeline.ChangeEventSourceCoordinator;
import java.lang.reflect.Field;
import java.sql.SQLException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.connect.connector.Task;
import org.apache.kafka.connect.errors.ConnectException;
import org.apache.kafka.connect.source.SourceRecord;

/**
 * Debezium's connector, which after a restart begins with a transaction's first row.
 *
 * <p>Debezium notes after every record where it is, and goes on amid a transaction. It may then count
 * the rest from 1 again (the BEGIN of another transaction that is read once more resets its
 * counters), and passes by what is left of an LSN of which it had sent one row. Here every record
 * carries the place of the last commit: a transaction that was cut is sent once more as a whole, with
 * the same numbers, and who reads the topics tells by them what it has.
 */
public final class WholeTransactions extends PostgresConnector {
    @Override
    public Class<? extends Task> taskClass() {
        return OfTransactions.class;
    }

    /** Sends what Debezium's task reads. */
    public static final class OfTransactions extends PostgresConnectorTask {
        private static final String HEARTBEATS = "__debezium-heartbeat";

        // Records of one transaction share it.
        private Map<String, Object> place = Map.of();

        // Of the last record that had a place, in this run.
        private Map<String, ?> last;

        @Override
        public CdcSourceTaskContext<PostgresConnectorConfig> preStart(Configuration config) {
            return super.preStart(withRealNames(config));
        }

        @Override
        public ChangeEventSourceCoordinator<PostgresPartition, PostgresOffsetContext> start(Configuration config) {
            return super.start(withRealNames(config));
        }

        /**
         * Debezium rewrites column names where it sees an Avro converter, so that two may become one.
         * Without sight of it the names stay what they are, and {@link ColumnNames} carries them.
         */
        private static Configuration withRealNames(Configuration config) {
            return config.filter(name -> !name.equals("key.converter") && !name.equals("value.converter"));
        }

        @Override
        protected ReplicationConnection buildReplicationConnection(PostgresConnection catalog, PostgresSchema schema,
                PostgresConnectorConfig config) throws SQLException {
            ReplicationConnection connection = super.buildReplicationConnection(catalog, schema, config);
            try {
                // Debezium chooses its decoder by name and lets nobody give it another one.
                Field decoder = PostgresReplicationConnection.class.getDeclaredField("messageDecoder");
                decoder.setAccessible(true);
                RelationsOfWal relations = new RelationsOfWal(new MessageDecoderContext(config, schema), catalog);
                decoder.set(connection, relations);
                if (config.getSnapshotMode() == PostgresConnectorConfig.SnapshotMode.NO_DATA) {
                    TwinColumns.passBy(schema, config, catalog, relations::hasBegun);
                }
            } catch (ReflectiveOperationException error) {
                throw new ConnectException("This release of Debezium holds its decoder otherwise: use the one that"
                        + " Penstock names", error);
            }
            return connection;
        }

        @Override
        public List<SourceRecord> doPoll() throws InterruptedException {
            List<SourceRecord> records = new ArrayList<>();
            for (SourceRecord record : super.doPoll()) {
                if (!record.sourceOffset().containsKey("lsn")) {
                    records.add(at(whereItStood(record), record));
                } else if (record.sourceOffset().containsKey("snapshot")) {
                    last = record.sourceOffset();
                    records.add(record);
                } else if (!comesBeforeEnd(record)) {
                    last = atCommit(record.sourceOffset());
                    records.add(at(last, record));
                }
            }
            return records;
        }

        /**
         * Debezium tells that a snapshot begins before it has a place. The word's own, noted alone,
         * would be that of a finished snapshot: a worker that died then never took one, and the rows
         * that were there never came. Such a record moves no place; none is null, which notes nothing.
         */
        private Map<String, ?> whereItStood(SourceRecord record) {
            if (last != null) {
                return last;
            }
            Map<String, Object> noted = context.offsetStorageReader().offset(new HashMap<>(record.sourcePartition()));
            return noted != null && noted.containsKey("lsn") ? noted : null;
        }

        /**
         * A heartbeat that a commit sets off is sent before the transaction's END: with its place
         * kept and the END not yet sent, a restart would pass the END by.
         */
        private static boolean comesBeforeEnd(SourceRecord record) {
            Map<String, ?> offset = record.sourceOffset();
            return record.topic().startsWith(HEARTBEATS)
                    && "COMMIT".equals(offset.get("messageType"))
                    && offset.containsKey("transaction_id");
        }

        private Map<String, Object> atCommit(Map<String, ?> offset) {
            Object commit = offset.get("lsn_commit");
            if (commit == null || !commit.equals(place.get("lsn_commit"))) {
                place = lastCommit(offset, commit);
            }
            return place;
        }

        private static SourceRecord at(Map<String, ?> place, SourceRecord record) {
            return new SourceRecord(record.sourcePartition(), place, record.topic(),
                    record.kafkaPartition(), record.keySchema(), record.key(), record.valueSchema(),
                    record.value(), record.timestamp(), record.headers());
        }

        /**
         * Without `lsn_proc` Debezium searches for nothing and sends all that the slot gives: right
         * before the first commit. Behind a MESSAGE at the last commit it begins with the first
         * event as well; behind a COMMIT it would read the next transaction to its end first.
         */
        private static Map<String, Object> lastCommit(Map<String, ?> offset, Object commit) {
            Map<String, Object> found = new HashMap<>(offset);
            found.keySet().removeIf(name -> name.startsWith("transaction_"));
            found.remove("lsn_events_processed");
            found.remove("lsn_proc");
            if (commit != null) {
                found.put("lsn", commit);
                found.put("lsn_proc", commit);
                found.put("messageType", "MESSAGE");
            }
            return Map.copyOf(found);
        }
    }
}
