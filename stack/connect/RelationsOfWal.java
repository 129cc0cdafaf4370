package penstock.connect;

import io.debezium.connector.postgresql.PostgresSchema;
import io.debezium.connector.postgresql.PostgresType;
import io.debezium.connector.postgresql.TypeRegistry;
import io.debezium.connector.postgresql.connection.MessageDecoderContext;
import io.debezium.connector.postgresql.connection.PostgresConnection;
import io.debezium.connector.postgresql.connection.ReplicationStream.ReplicationMessageProcessor;
import io.debezium.connector.postgresql.connection.pgoutput.PgOutputMessageDecoder;
import io.debezium.relational.Column;
import io.debezium.relational.ColumnEditor;
import io.debezium.relational.Key.KeyMapper;
import io.debezium.relational.Table;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.sql.SQLException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.stream.Collectors;

/**
 * Reads rows as the table was when they were written.
 *
 * <p>Debezium asks the live catalog, by column name, for the type, the key and the nullability of
 * what a relation message describes. A connector that is behind then reads old rows as the table is
 * now: the text of a column that has become a number fails the task for ever or, worse, parses; a
 * null becomes a zero; a key column that was renamed is no key. Here the relation message itself
 * decides on types and key, and a row that holds a null on whether its column may be null. A column of
 * the key that is not told of old rows may be null, too: who reads its changes knows by that. What
 * Debezium does not see of a type is described with the column ({@link ColumnTypes}), and names that
 * differ by case alone are told apart ({@link TwinColumns}).
 */
final class RelationsOfWal extends PgOutputMessageDecoder {
    private static final int KEY_FLAG = 1;
    private static final char BY_PRIMARY_KEY = 'd';
    private static final char BY_ALL = 'f';
    private static final char NEW_ROW = 'N';
    /** All but the key is null in it, whatever the row held. */
    private static final char KEY_OF_OLD_ROW = 'K';

    private final PostgresSchema tables;
    private final ColumnTypes described;
    private final KeyMapper declared;
    private final Map<Integer, Relation> relations = new HashMap<>();
    private volatile boolean begun;

    RelationsOfWal(MessageDecoderContext context, PostgresConnection catalog) {
        super(context, catalog);
        tables = context.getSchema();
        declared = context.getConfig().getKeyMapper();
        described = new ColumnTypes(catalog, context.getConfig().getTableFilters().dataCollectionFilter());
    }

    /** What a relation message says of one column. */
    private record Described(String name, int type, int modifier, boolean key) {
    }

    /** Says whether the stream is being read: what comes before reads the catalog. */
    boolean hasBegun() {
        return begun;
    }

    /** A relation message. {@code nullable} are the places of columns that held a null since. */
    private static final class Relation {
        private final int id;
        private final char identity;
        private final List<Described> columns = new ArrayList<>();
        private final Set<Integer> nullable = new HashSet<>();
        private Table applied;

        Relation(int id, char identity) {
            this.id = id;
            this.identity = identity;
        }

        List<String> key() {
            return columns.stream().filter(column -> identity == BY_PRIMARY_KEY && column.key()).map(Described::name)
                    .toList();
        }
    }

    @Override
    public void processNotEmptyMessage(ByteBuffer buffer, ReplicationMessageProcessor processor, TypeRegistry types)
            throws SQLException, InterruptedException {
        begun = true;
        switch ((char) buffer.get(buffer.position())) {
            case 'M' -> {
                described.take(buffer.duplicate());
                super.processNotEmptyMessage(buffer, processor, types);
            }
            case 'R' -> {
                ByteBuffer message = withoutTwins(buffer);
                Relation relation = relation(message.duplicate());
                super.processNotEmptyMessage(message, processor, types);
                relations.put(relation.id, relation);
                apply(relation, types);
            }
            case 'I', 'U', 'D' -> {
                lookAt(buffer.duplicate(), types);
                super.processNotEmptyMessage(buffer, processor, types);
            }
            default -> super.processNotEmptyMessage(buffer, processor, types);
        }
    }

    private static Relation relation(ByteBuffer message) {
        message.get();
        int id = message.getInt();
        name(message);
        name(message);
        Relation relation = new Relation(id, (char) message.get());
        for (int left = message.getShort(); left > 0; left--) {
            boolean key = (message.get() & KEY_FLAG) != 0;
            relation.columns.add(new Described(name(message), message.getInt(), message.getInt(), key));
        }
        return relation;
    }

    /** Returns the message with names that Debezium can tell apart. */
    private static ByteBuffer withoutTwins(ByteBuffer buffer) {
        ByteBuffer from = buffer.duplicate();
        from.get();
        from.getInt();
        name(from);
        name(from);
        from.get();
        int count = from.getShort();
        int start = from.position();
        List<String> names = new ArrayList<>();
        for (int place = 0; place < count; place++) {
            from.get();
            names.add(name(from));
            from.getLong();
        }
        List<String> apart = TwinColumns.apart(names);
        if (apart.equals(names)) {
            return buffer;
        }
        int size = String.join("", apart).getBytes(StandardCharsets.UTF_8).length;
        ByteBuffer to = ByteBuffer.allocate(buffer.remaining() + size);
        to.put(buffer.duplicate().limit(start));
        from.position(start);
        for (String name : apart) {
            to.put(from.get());
            name(from);
            to.put(name.getBytes(StandardCharsets.UTF_8)).put((byte) 0).putLong(from.getLong());
        }
        return to.flip();
    }

    /** Reads a name and the zero behind it. */
    static String name(ByteBuffer message) {
        int start = message.position();
        int length = 0;
        while (message.get() != 0) {
            length++;
        }
        byte[] bytes = new byte[length];
        message.get(start, bytes);
        return new String(bytes, StandardCharsets.UTF_8);
    }

    /** Notes nulls in columns that may have none now, and applies anew what somebody else has replaced. */
    private void lookAt(ByteBuffer message, TypeRegistry types) throws SQLException {
        char operation = (char) message.get();
        Relation relation = relations.get(message.getInt());
        if (relation == null || relation.applied == null) {
            return;
        }
        if (tables.tableFor(relation.id) != relation.applied) {
            tables.applySchemaChangesForTable(relation.id, relation.applied);
            relation.applied = tables.tableFor(relation.id);
        }
        char image = (char) message.get();
        boolean found = skip(message, relation, image);
        if (operation == 'U' && image != NEW_ROW) {
            found |= skip(message, relation, (char) message.get());
        }
        if (found) {
            apply(relation, types);
        }
    }

    /** Passes a row by; returns whether it has a null in a column that may not be null. */
    private static boolean skip(ByteBuffer message, Relation relation, char image) {
        List<Column> columns = relation.applied.columns();
        boolean found = false;
        int count = message.getShort();
        for (int place = 0; place < count; place++) {
            char kind = (char) message.get();
            if (kind == 't') {
                int length = message.getInt();
                message.position(message.position() + length);
            } else if (kind == 'n' && image != KEY_OF_OLD_ROW && !columns.get(place).isOptional()) {
                found |= relation.nullable.add(place);
            }
        }
        return found;
    }

    private void apply(Relation relation, TypeRegistry types) throws SQLException {
        Table table = tables.tableFor(relation.id);
        if (table == null) {
            return;
        }
        List<Column> columns = new ArrayList<>();
        List<String> key = relation.key();
        noteUntold(table, relation, key.isEmpty() ? table.primaryKeyColumnNames() : key);
        for (int place = 0; place < relation.columns.size(); place++) {
            columns.add(column(table, relation, place, key, types));
        }
        boolean sameKey = key.isEmpty() || new HashSet<>(key).equals(new HashSet<>(table.primaryKeyColumnNames()));
        if (!sameKey || !columns.equals(table.columns())) {
            Table wanted = Table.editor().tableId(table.id()).addColumns(columns)
                    .setPrimaryKeyNames(sameKey ? table.primaryKeyColumnNames() : key).create();
            tables.applySchemaChangesForTable(relation.id, wanted);
        }
        relation.applied = tables.tableFor(relation.id);
    }

    /** Notes columns of the key that an old row does not have: it would say 0, or nothing, in their place. */
    private void noteUntold(Table table, Relation relation, List<String> primary) {
        if (relation.identity == BY_ALL) {
            return;
        }
        Table keyed = table.edit().setPrimaryKeyNames(primary).create();
        List<Column> key = declared == null ? keyed.primaryKeyColumns() : declared.getKeyKolumns(keyed);
        Set<String> names = key.stream().map(Column::name).collect(Collectors.toSet());
        for (int place = 0; place < relation.columns.size(); place++) {
            if (!relation.columns.get(place).key() && names.contains(table.columns().get(place).name())) {
                relation.nullable.add(place);
            }
        }
    }

    private Column column(Table table, Relation relation, int place, List<String> key, TypeRegistry types)
            throws SQLException {
        Column live = table.columns().get(place);
        Described said = relation.columns.get(place);
        PostgresType type = types.get(said.type());
        boolean optional = relation.nullable.contains(place) || live.isOptional() && !key.contains(live.name());
        String description = described.of(relation.id, TwinColumns.real(said.name()), type, said.type(), said.modifier());
        // Of all that a converter is told of a column, this says nothing else in PostgreSQL.
        ColumnEditor editor = live.edit().optional(optional)
                .charsetName(description == null ? PostgresText.NOT_DESCRIBED : description);
        if (isEnum(type)) {
            // Debezium would read the table from the catalog again at every label that is new to it.
            editor.type("text");
        } else if (types.get(table.id().schema(), live.typeName()).getOid() != said.type()) {
            String name = nameOf(type, table.id().schema(), types);
            // What follows the name, length and scale, is the relation message's already; a default is not.
            String modifiers = live.typeExpression().substring(live.typeName().length());
            editor.type(name, name + modifiers).unsetDefaultValueExpression();
        }
        return editor.create();
    }

    private static boolean isEnum(PostgresType type) {
        return type.isEnumType() || type.getRootType().isEnumType();
    }

    /**
     * Returns a name by which Debezium finds the type again, in a table of that schema. The name of a
     * type that was dropped and made again means the old one to it, and some have none any more: their
     * values are read as those of their base, or as the text that they are.
     */
    private static String nameOf(PostgresType type, String schema, TypeRegistry types) {
        for (PostgresType each = type; each != null; each = each.getParentType()) {
            int oid = each.getOid();
            if (types.get(schema, each.getName()).getOid() == oid) {
                return each.getName();
            }
            Optional<String> other = types.getRegisteredTypes().entrySet().stream()
                    .filter(entry -> entry.getValue().getOid() == oid).map(Map.Entry::getKey)
                    .filter(name -> types.get(schema, name).getOid() == oid).findFirst();
            if (other.isPresent()) {
                return other.get();
            }
        }
        return "text";
    }
}
