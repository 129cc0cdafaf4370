package penstock.connect;

import io.debezium.connector.postgresql.PostgresConnector;
import io.debezium.connector.postgresql.PostgresConnectorTask;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import org.apache.kafka.connect.connector.Task;
import org.apache.kafka.connect.source.SourceRecord;

/**
 * Debezium's connector, which after a restart begins with a transaction's first row.
 *
 * <p>Debezium notes after every record where it is, and goes on amid a transaction. It may then count
 * the rest from 1 again (the COMMIT of another transaction that is read once more resets its
 * counters), and passes by what is left of an LSN of which it had sent one row. Here a record amid a
 * transaction carries the place of the commit before: the whole transaction is sent once more, with
 * the same numbers, and who reads the topics tells by them what it has.
 */
public final class WholeTransactions extends PostgresConnector {
    @Override
    public Class<? extends Task> taskClass() {
        return OfTransactions.class;
    }

    /** Sends what Debezium's task reads. */
    public static final class OfTransactions extends PostgresConnectorTask {
        private Map<String, Object> boundary = Map.of();

        @Override
        public List<SourceRecord> doPoll() throws InterruptedException {
            return super.doPoll().stream().map(this::atCommit).collect(Collectors.toList());
        }

        private SourceRecord atCommit(SourceRecord record) {
            Map<String, ?> offset = record.sourceOffset();
            Object commit = offset.get("lsn_commit");
            // Before the first commit there is no place to go to.
            if (commit == null || offset.containsKey("snapshot") || between(offset, commit)) {
                return record;
            }
            if (!commit.equals(boundary.get("lsn"))) {
                boundary = place(offset, commit);
            }
            return new SourceRecord(record.sourcePartition(), boundary, record.topic(),
                    record.kafkaPartition(), record.keySchema(), record.key(), record.valueSchema(),
                    record.value(), record.timestamp(), record.headers());
        }

        /** A transaction's first row may have the LSN at which the one before it ended. */
        private static boolean between(Map<String, ?> offset, Object commit) {
            Object type = offset.get("messageType");
            return "COMMIT".equals(type) || "MESSAGE".equals(type) && commit.equals(offset.get("lsn"));
        }

        /** Returns what Debezium itself notes at a commit. */
        private static Map<String, Object> place(Map<String, ?> offset, Object commit) {
            Map<String, Object> found = new HashMap<>(offset);
            found.keySet().removeIf(name -> name.startsWith("transaction_"));
            found.remove("lsn_events_processed");
            found.put("lsn", commit);
            found.put("lsn_proc", commit);
            found.put("messageType", "COMMIT");
            return Map.copyOf(found);
        }
    }
}
