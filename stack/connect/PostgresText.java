package penstock.connect;

import io.debezium.connector.postgresql.PostgresValueConverter;
import io.debezium.connector.postgresql.UnchangedToastedReplicationMessageColumn;
import io.debezium.connector.postgresql.connection.DateTimeFormat;
import io.debezium.data.SpecialValueDecimal;
import io.debezium.spi.converter.CustomConverter;
import io.debezium.spi.converter.RelationalColumn;
import io.debezium.time.Date;
import io.debezium.time.MicroTimestamp;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.sql.Array;
import java.sql.SQLException;
import java.sql.Types;
import java.time.Instant;
import java.time.LocalDate;
import java.time.ZoneOffset;
import java.util.Calendar;
import java.util.GregorianCalendar;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TimeZone;
import java.util.TreeMap;
import org.apache.kafka.connect.data.SchemaBuilder;
import org.apache.kafka.connect.errors.DataException;
import org.postgresql.util.PGInterval;

/**
 * Sends the values that Debezium alters, or leaves out, as PostgreSQL's own text.
 *
 * <p>Arrays of any type and number of dimensions, times with a zone, intervals, bit strings,
 * geometric and composite values and all types that it does not know become strings, so that each of
 * them can also carry the mark of a value that an UPDATE left alone. Dates keep their type, but not
 * the calendar in which the driver reads them for a snapshot; timestamps that a long cannot count
 * wrap around instead of being cut.
 *
 * <p>{@code columns} describes columns whose type the connector does not see, as `name:oid:text`
 * joined by commas, each part URL-encoded; the text travels in the schema. It is for a snapshot: the
 * stream describes its columns itself ({@link ColumnTypes}). {@code placeholder} is
 * the mark.
 */
public final class PostgresText implements CustomConverter<SchemaBuilder, RelationalColumn> {
    private static final String TEXT = "penstock.text";
    private static final String COLUMN = "penstock.column";
    /** Stands with a column of the stream of whose type Debezium sees all. */
    static final String NOT_DESCRIBED = "";
    private static final int FIRST_USER_OID = 16384;
    private static final int BIT = 1560;
    private static final int DATE = 1082;
    private static final int TIMESTAMP = 1114;
    private static final int MONEY = 790;
    private static final int NUMERIC = 1700;

    /** bool, bytea, int8, int2, int4, text, oid, json, float4, float8, money, bpchar, varchar, time,
     * timestamptz, numeric, uuid, jsonb: Debezium keeps them whole. */
    private static final Set<Integer> WHOLE = Set.of(16, 17, 20, 21, 23, 25, 26, 114, 700, 701, 790, 1042, 1043, 1083,
            1184, 1700, 2950, 3802);

    /** What a domain over such a type, or an enum, looks like to the driver. */
    private static final Set<Integer> PLAIN = Set.of(Types.BIT, Types.BOOLEAN, Types.SMALLINT, Types.INTEGER,
            Types.BIGINT, Types.REAL, Types.FLOAT, Types.DOUBLE, Types.CHAR, Types.VARCHAR, Types.DATE, Types.TIME,
            Types.TIMESTAMP, Types.BINARY);

    private record Described(int oid, String text) {
    }

    private final Map<String, Described> columns = new HashMap<>();
    private String placeholder;

    @Override
    public void configure(Properties settings) {
        if (!TimeZone.getDefault().hasSameRules(TimeZone.getTimeZone("UTC"))) {
            // PostgreSQL prints times inside of ranges and composites in the session's zone.
            throw new DataException("Kafka Connect must run in UTC: start it with -Duser.timezone=UTC");
        }
        placeholder = settings.getProperty("placeholder");
        columns.clear();
        for (String entry : settings.getProperty("columns", "").split(",")) {
            String[] parts = entry.split(":");
            if (parts.length == 3) {
                columns.put(decoded(parts[0]), new Described(Integer.parseInt(parts[1]), decoded(parts[2])));
            }
        }
    }

    @Override
    public void converterFor(RelationalColumn column, ConverterRegistration<SchemaBuilder> registration) {
        boolean optional = column.isOptional();
        if (column.nativeType() == DATE) {
            registration.register(Date.builder(), value -> date(value, optional));
            return;
        }
        if (column.nativeType() == TIMESTAMP) {
            registration.register(MicroTimestamp.builder(), value -> micros(value, optional));
            return;
        }
        String description = description(column);
        if (description != null || isOdd(column)) {
            SchemaBuilder schema = SchemaBuilder.string().parameter(TEXT, "1");
            if (description != null) {
                schema.parameter(COLUMN, description);
            }
            Object fallback = column.hasDefaultValue() ? column.defaultValue() : null;
            registration.register(schema, value -> value == null && !optional ? placeholder
                    : value == fallback ? textOfDefault(value) : text(value));
        }
    }

    /**
     * Returns what {@link RelationsOfWal} found; of a column of a snapshot, what the settings say of that
     * type; else null. The settings are of the time at which the connector was configured: a column of the
     * stream may be of a domain's base type by now, which has the same oid.
     */
    private String description(RelationalColumn column) {
        String found = column.charsetName();
        if (found != null) {
            return found.equals(NOT_DESCRIBED) ? null : found;
        }
        Described described = columns.get(column.dataCollection() + "." + column.name());
        return described != null && described.oid() == column.nativeType() ? described.text() : null;
    }

    /** Says whether values of a domain over this type come whole, as those of the type itself. */
    static boolean isWhole(int oid) {
        return WHOLE.contains(oid) && oid != MONEY && oid != NUMERIC || oid == DATE || oid == TIMESTAMP;
    }

    private static boolean isOdd(RelationalColumn column) {
        int oid = column.nativeType();
        if (column.jdbcType() == Types.ARRAY) {
            return true;
        }
        if (oid == BIT) {
            return column.length().orElse(0) != 1;
        }
        return oid < FIRST_USER_OID ? !WHOLE.contains(oid) : !PLAIN.contains(column.jdbcType());
    }

    /**
     * The column's default, as Debezium converted it for a type that the column has no more (bits are
     * bytes then, intervals a number), stands in the schema of records and in none of them. One that has
     * no text must not keep the connector from making the schema.
     */
    private String textOfDefault(Object value) {
        try {
            return text(value);
        } catch (DataException none) {
            return "";
        }
    }

    private String text(Object value) {
        if (value == null) {
            return null;
        }
        if (UnchangedToastedReplicationMessageColumn.isUnchangedToastedValue(value)) {
            return placeholder;
        }
        if (value instanceof PGInterval interval) {
            return interval(interval);
        }
        if (value instanceof Map<?, ?> pairs) {
            return hstore(pairs);
        }
        if (value instanceof byte[] || value instanceof java.util.Date) {
            throw new DataException("a value of " + value.getClass() + " has no text");
        }
        if (value instanceof java.math.BigDecimal number) {
            return number.toPlainString();
        }
        if (value instanceof SpecialValueDecimal number) {
            return switch (number.toString()) {
                case "NAN" -> "NaN";
                case "POSITIVE_INFINITY" -> "Infinity";
                case "NEGATIVE_INFINITY" -> "-Infinity";
                default -> number.toString();
            };
        }
        if (value instanceof java.sql.SQLXML xml) {
            try {
                return xml.getString();
            } catch (SQLException error) {
                throw new DataException(error);
            }
        }
        // Text as it is; arrays and objects of the driver print what PostgreSQL printed. An array that
        // the driver cannot print is "NULL" to it, which no array is.
        String text = value.toString();
        if (text == null || value instanceof Array && text.equals("NULL")) {
            throw new DataException("a value of " + value.getClass() + " has no text");
        }
        return text;
    }

    private static String interval(PGInterval value) {
        StringBuilder text = new StringBuilder("P");
        append(text, value.getYears(), 'Y');
        append(text, value.getMonths(), 'M');
        append(text, value.getDays(), 'D');
        long micros = value.getWholeSeconds() * 1_000_000L + value.getMicroSeconds();
        if (value.getHours() != 0 || value.getMinutes() != 0 || micros != 0) {
            text.append('T');
            append(text, value.getHours(), 'H');
            append(text, value.getMinutes(), 'M');
            if (micros != 0) {
                text.append(java.math.BigDecimal.valueOf(micros, 6).stripTrailingZeros().toPlainString()).append('S');
            }
        }
        return text.length() == 1 ? "PT0S" : text.toString();
    }

    private static void append(StringBuilder text, int number, char unit) {
        if (number != 0) {
            text.append(number).append(unit);
        }
    }

    /** PostgreSQL orders keys by their bytes' number, then by the bytes. */
    private static String hstore(Map<?, ?> pairs) {
        Map<byte[], Object> ordered = new TreeMap<>((one, other) -> one.length != other.length
                ? Integer.compare(one.length, other.length)
                : java.util.Arrays.compareUnsigned(one, other));
        pairs.forEach((key, value) -> ordered.put(key.toString().getBytes(StandardCharsets.UTF_8), value));
        StringBuilder text = new StringBuilder();
        ordered.forEach((key, value) -> {
            text.append(text.length() == 0 ? "" : ", ").append(quoted(new String(key, StandardCharsets.UTF_8)));
            text.append("=>").append(value == null ? "NULL" : quoted(value.toString()));
        });
        return text.toString();
    }

    private static String quoted(String text) {
        return '"' + text.replace("\\", "\\\\").replace("\"", "\\\"") + '"';
    }

    /** Days since 1970; the first and last int stand for the infinities. */
    private static Integer date(Object value, boolean optional) {
        if (value == null) {
            return optional ? null : 0;
        }
        if (value instanceof LocalDate date) {
            return days(date);
        }
        if (value instanceof java.time.LocalDateTime moment) {
            return days(moment.toLocalDate());
        }
        if (value instanceof Integer days) {
            return days;
        }
        if (value instanceof java.sql.Date date) {
            return date.getTime() == org.postgresql.PGStatement.DATE_POSITIVE_INFINITY ? Integer.valueOf(Integer.MAX_VALUE)
                    : date.getTime() == org.postgresql.PGStatement.DATE_NEGATIVE_INFINITY
                            ? Integer.valueOf(Integer.MIN_VALUE)
                            : Integer.valueOf(driversDate(date));
        }
        throw new DataException("a date came as " + value.getClass());
    }

    /** Microseconds since 1970, modulo 2^64; the first and last long stand for the infinities. */
    private static Long micros(Object value, boolean optional) {
        if (value == null) {
            return optional ? null : 0L;
        }
        if (value instanceof Long micros) {
            return micros;
        }
        if ("infinity".equals(value) || PostgresValueConverter.POSITIVE_INFINITY_INSTANT.equals(value)) {
            return Long.MAX_VALUE;
        }
        if ("-infinity".equals(value) || PostgresValueConverter.NEGATIVE_INFINITY_INSTANT.equals(value)) {
            return Long.MIN_VALUE;
        }
        if (value instanceof String text) {
            return wrapped(DateTimeFormat.get().timestampToInstant(text));
        }
        if (value instanceof Instant instant) {
            return wrapped(instant);
        }
        throw new DataException("a timestamp came as " + value.getClass());
    }

    private static long wrapped(Instant instant) {
        return instant.getEpochSecond() * 1_000_000L + instant.getNano() / 1000;
    }

    private static int days(LocalDate date) {
        if (PostgresValueConverter.POSITIVE_INFINITY_LOCAL_DATE.equals(date)) {
            return Integer.MAX_VALUE;
        }
        if (PostgresValueConverter.NEGATIVE_INFINITY_LOCAL_DATE.equals(date)) {
            return Integer.MIN_VALUE;
        }
        return Math.toIntExact(date.toEpochDay());
    }

    /** The driver reads a date's year, month and day as the Julian calendar's before October 1582. */
    private static int driversDate(java.sql.Date date) {
        Calendar calendar = new GregorianCalendar(TimeZone.getDefault());
        calendar.setTime(date);
        int year = calendar.get(Calendar.YEAR);
        int month = calendar.get(Calendar.MONTH) + 1;
        int day = calendar.get(Calendar.DAY_OF_MONTH);
        if (year == 1582 && month == 10 && day >= 15 && day <= 24) {
            throw new DataException("the snapshot cannot tell the dates 1582-10-05 to 1582-10-14 from those ten days"
                    + " later: use snapshot = \"copy\"");
        }
        int proleptic = calendar.get(Calendar.ERA) == GregorianCalendar.BC ? 1 - year : year;
        return Math.toIntExact(LocalDate.of(proleptic, month, day).atStartOfDay(ZoneOffset.UTC).toLocalDate().toEpochDay());
    }

    private static String decoded(String text) {
        return URLDecoder.decode(text, StandardCharsets.UTF_8);
    }
}
