package penstock.connect;

import java.util.HashSet;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.WeakHashMap;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.connect.connector.ConnectRecord;
import org.apache.kafka.connect.data.Field;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.SchemaBuilder;
import org.apache.kafka.connect.data.Struct;
import org.apache.kafka.connect.transforms.Transformation;

/**
 * Carries names that Avro cannot write.
 *
 * <p>Avro's names are letters, digits and underscores of ASCII. A field of another name gets one that
 * is like it and that no other field of its record has; its real name travels beside, as the
 * parameter {@code penstock.name} of its schema, with the number of one that differs from another by
 * case alone ({@link TwinColumns}). Fields that Avro can write pass unchanged. The records
 * themselves are named after their table: of {@code -dash} or {@code 1st} the registry would take a
 * schema that it does not give back.
 */
public final class ColumnNames<R extends ConnectRecord<R>> implements Transformation<R> {
    private static final String NAME = "penstock.name";
    private static final Pattern WRITABLE = Pattern.compile("[A-Za-z_][A-Za-z0-9_]*");

    // One task, one thread; a schema is dropped when the connector no longer uses it.
    private final Map<Schema, Schema> written = new WeakHashMap<>();

    @Override
    public R apply(R record) {
        Schema key = writable(record.keySchema());
        Schema value = writable(record.valueSchema());
        if (key == record.keySchema() && value == record.valueSchema()) {
            return record;
        }
        return record.newRecord(record.topic(), record.kafkaPartition(), key, copied(record.key(), key),
                value, copied(record.value(), value), record.timestamp(), record.headers());
    }

    /** Returns the schema itself where Avro can write every name in it. */
    private Schema writable(Schema schema) {
        if (schema == null || schema.type() != Schema.Type.STRUCT) {
            return schema;
        }
        Schema known = written.get(schema);
        if (known == null) {
            known = renamed(schema);
            // A map that held the key as its value would never let go of it.
            written.put(schema, known == schema ? Schema.BOOLEAN_SCHEMA : known);
        }
        return known == Schema.BOOLEAN_SCHEMA ? schema : known;
    }

    private Schema renamed(Schema schema) {
        String name = schema.name() == null ? null : writableName(schema.name());
        SchemaBuilder builder = KeepNulls.like(schema, name);
        Set<String> taken = new HashSet<>();
        schema.fields().stream().map(Field::name).filter(ColumnNames::isWritable).forEach(taken::add);
        boolean same = Objects.equals(name, schema.name());
        for (Field field : schema.fields()) {
            Schema inner = writable(field.schema());
            if (isWritable(field.name())) {
                builder.field(field.name(), inner);
                same &= inner == field.schema();
            } else {
                builder.field(unlike(taken, field.name()), named(inner, field.name()));
                same = false;
            }
        }
        return same ? schema : builder.build();
    }

    private static boolean isWritable(String name) {
        return WRITABLE.matcher(name).matches();
    }

    /** Every part of a record's name between dots is a name for Avro; nobody reads it for its table's. */
    private static String writableName(String name) {
        return Stream.of(name.split("\\.", -1)).map(ColumnNames::like).collect(Collectors.joining("."));
    }

    private static String like(String name) {
        return name.replaceAll("[^A-Za-z0-9_]", "_").replaceFirst("^(?=[0-9]|$)", "_");
    }

    private static String unlike(Set<String> taken, String name) {
        String wanted = like(name);
        String free = wanted;
        for (int again = 2; !taken.add(free); again++) {
            free = wanted + "_" + again;
        }
        return free;
    }

    private static Schema named(Schema schema, String name) {
        SchemaBuilder builder = KeepNulls.like(schema);
        if (schema.type() == Schema.Type.STRUCT) {
            schema.fields().forEach(field -> builder.field(field.name(), field.schema()));
        }
        if (schema.defaultValue() != null) {
            builder.defaultValue(schema.defaultValue());
        }
        return builder.parameter(NAME, name).build();
    }

    private static Object copied(Object from, Schema schema) {
        if (!(from instanceof Struct struct) || struct.schema() == schema) {
            return from;
        }
        Struct to = new Struct(schema);
        for (Field field : struct.schema().fields()) {
            Field wanted = schema.fields().get(field.index());
            to.put(wanted, copied(struct.getWithoutDefault(field.name()), wanted.schema()));
        }
        return to;
    }

    @Override
    public ConfigDef config() {
        return new ConfigDef();
    }

    @Override
    public void configure(Map<String, ?> settings) {
        written.clear();
    }

    @Override
    public void close() {
        written.clear();
    }
}
