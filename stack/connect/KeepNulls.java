package penstock.connect;

import java.util.List;
import java.util.Map;
import java.util.WeakHashMap;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.connect.connector.ConnectRecord;
import org.apache.kafka.connect.data.Field;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.SchemaBuilder;
import org.apache.kafka.connect.data.Struct;
import org.apache.kafka.connect.transforms.Transformation;

/**
 * Keeps the nulls of captured rows.
 *
 * <p>The Avro converter writes a column's default where its value is null, so that a row with a null
 * could not be told from one with the default. This takes the defaults of nullable columns out of
 * the row images of a change envelope; everything else passes unchanged.
 */
public final class KeepNulls<R extends ConnectRecord<R>> implements Transformation<R> {
    private static final List<String> IMAGES = List.of("before", "after");

    // One task, one thread; a schema is dropped when the connector no longer uses it.
    private final Map<Schema, Schema> bare = new WeakHashMap<>();

    @Override
    public R apply(R record) {
        Schema schema = record.valueSchema();
        if (schema == null || schema.type() != Schema.Type.STRUCT || !(record.value() instanceof Struct)
                || schema.field("before") == null || schema.field("after") == null) {
            return record;
        }
        Schema wanted = bare.computeIfAbsent(schema, KeepNulls::withoutDefaults);
        Struct envelope = (Struct) record.value();
        Struct copy = new Struct(wanted);
        for (Field field : wanted.fields()) {
            Object value = envelope.getWithoutDefault(field.name());
            boolean image = IMAGES.contains(field.name()) && value != null;
            copy.put(field, image ? row((Struct) value, field.schema()) : value);
        }
        return record.newRecord(record.topic(), record.kafkaPartition(), record.keySchema(), record.key(),
                wanted, copy, record.timestamp(), record.headers());
    }

    private static Struct row(Struct from, Schema schema) {
        Struct to = new Struct(schema);
        for (Field field : schema.fields()) {
            to.put(field, from.getWithoutDefault(field.name()));
        }
        return to;
    }

    private static Schema withoutDefaults(Schema envelope) {
        SchemaBuilder builder = like(envelope);
        for (Field field : envelope.fields()) {
            boolean image = IMAGES.contains(field.name());
            builder.field(field.name(), image ? imageWithoutDefaults(field.schema()) : field.schema());
        }
        return builder.build();
    }

    private static Schema imageWithoutDefaults(Schema image) {
        SchemaBuilder builder = like(image);
        for (Field field : image.fields()) {
            Schema column = field.schema();
            // A column that may not be null keeps its default: an image of the key alone needs it.
            boolean strip = column.isOptional() && column.defaultValue() != null;
            builder.field(field.name(), strip ? like(column).build() : column);
        }
        return builder.build();
    }

    /** Starts a schema with everything but the default and, for a struct, the fields. */
    static SchemaBuilder like(Schema schema) {
        return like(schema, schema.name());
    }

    /** Does so under another name. */
    static SchemaBuilder like(Schema schema, String name) {
        SchemaBuilder builder = switch (schema.type()) {
            case ARRAY -> SchemaBuilder.array(schema.valueSchema());
            case MAP -> SchemaBuilder.map(schema.keySchema(), schema.valueSchema());
            default -> new SchemaBuilder(schema.type());
        };
        builder.name(name).version(schema.version()).doc(schema.doc());
        if (schema.parameters() != null) {
            builder.parameters(schema.parameters());
        }
        return schema.isOptional() ? builder.optional() : builder;
    }

    @Override
    public ConfigDef config() {
        return new ConfigDef();
    }

    @Override
    public void configure(Map<String, ?> settings) {
        bare.clear();
    }

    @Override
    public void close() {
        bare.clear();
    }
}
