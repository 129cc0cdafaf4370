-- Tells Penstock of DDL, in the place where it stands in the stream of changes.
-- Run it as a superuser, in one transaction (psql -v ON_ERROR_STOP=1 -1 -f ddl.sql);
-- `penstock source add` does so by itself where its role may.

-- The event triggers run these functions with the rights of a superuser. Who owns the schema or a
-- function can put other code into it later, so none that somebody made beforehand is taken over.
DO $check$
DECLARE
    foreign_one text;
BEGIN
    SELECT o.name || ' belongs to '::text || r.rolname::text INTO foreign_one
      FROM (SELECT 'schema penstock'::text AS name, n.nspowner AS owner
              FROM pg_catalog.pg_namespace n WHERE n.nspname = 'penstock'
            UNION ALL
            SELECT 'function '::text || p.oid::regprocedure::text, p.proowner
              FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
             WHERE n.nspname = 'penstock'
               AND p.proname ~ '^(tell_)?(ddl|drop|rewrite|table)_v[0-9]+$') o
      JOIN pg_catalog.pg_roles r ON r.oid = o.owner
     WHERE r.rolname <> current_user AND NOT r.rolsuper
     LIMIT 1;
    IF foreign_one IS NULL THEN
        RETURN;
    END IF;
    -- Who is no superuser could not replace what belongs to another role anyway.
    IF (SELECT NOT r.rolsuper FROM pg_catalog.pg_roles r WHERE r.rolname = current_user) THEN
        RAISE insufficient_privilege USING MESSAGE = foreign_one;
    END IF;
    RAISE EXCEPTION '%, who is no superuser and could change what superusers run', foreign_one
        USING HINT = 'Look at what is in it, then: DROP SCHEMA penstock CASCADE';
END
$check$;

CREATE SCHEMA IF NOT EXISTS penstock;
GRANT USAGE ON SCHEMA penstock TO PUBLIC;

-- A table as JSON. Columns have attnum, declared type, and type, kind, modifier, dimensions with
-- domains resolved. `missing` is the value of a column in rows that were there before it was added.
CREATE OR REPLACE FUNCTION penstock.table_v1(relid oid) RETURNS jsonb
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET "DateStyle" = 'ISO, YMD' SET "IntervalStyle" = 'iso_8601' SET "TimeZone" = 'UTC'
SET extra_float_digits = 3 SET bytea_output = 'hex'
AS $function$
WITH RECURSIVE base AS (
    SELECT a.attnum, a.atttypid AS type, a.atttypmod AS modifier,
           a.attndims::int AS dimensions, false AS is_array, a.atttypid AS own
      FROM pg_attribute a
     WHERE a.attrelid = relid AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT b.attnum, coalesce(e.oid, t.typbasetype),
           CASE WHEN e.oid IS NULL AND t.typtypmod >= 0 THEN t.typtypmod ELSE b.modifier END,
           CASE WHEN b.is_array THEN b.dimensions ELSE greatest(b.dimensions, t.typndims) END,
           b.is_array OR e.oid IS NOT NULL, b.own
      FROM base b JOIN pg_type t ON t.oid = b.type
      LEFT JOIN pg_type e ON e.typarray = t.oid AND NOT b.is_array
     WHERE t.typtype = 'd' OR e.oid IS NOT NULL
), resolved AS (
    SELECT b.attnum, jsonb_build_object(
             'attnum', b.attnum, 'name', a.attname, 'declared', format_type(b.own, a.atttypmod),
             'type', t.typname, 'kind', t.typtype, 'modifier', b.modifier,
             'is_array', b.is_array,
             'dimensions', CASE WHEN b.is_array THEN greatest(b.dimensions, 1) ELSE 0 END,
             'delimiter', t.typdelim, 'not_null', a.attnotnull, 'generated', a.attgenerated::text,
             'default', a.atthasdef OR a.attidentity <> ''
                 OR (SELECT d.typtype = 'd' FROM pg_type d WHERE d.oid = b.own),
             -- A partitioned table has no rows of its own: its partitions know. By the output of the
             -- type itself: not all values stand between commas in an array (those of box do not).
             'missing', (SELECT array_to_string(m.attmissingval, '')
                           FROM pg_attribute m
                          WHERE (m.attrelid = relid
                                 OR m.attrelid IN (SELECT p.relid FROM pg_partition_tree(relid) p))
                            AND m.attname = a.attname AND m.atthasmissing AND NOT m.attisdropped
                          LIMIT 1),
             -- Those of enums inside of a composite type or a range, too: its text has them.
             'labels', CASE WHEN t.typtype IN ('e', 'c', 'r', 'm') THEN (
                 WITH RECURSIVE inside AS (
                     SELECT t.oid
                     UNION
                     SELECT n.oid
                       FROM inside i CROSS JOIN LATERAL (
                         SELECT m.atttypid AS oid FROM pg_type o JOIN pg_attribute m
                             ON m.attrelid = o.typrelid AND m.attnum > 0 AND NOT m.attisdropped
                          WHERE o.oid = i.oid AND o.typtype = 'c'
                         UNION ALL
                         SELECT g.rngsubtype FROM pg_range g
                          WHERE i.oid IN (g.rngtypid, g.rngmultitypid)
                         UNION ALL
                         SELECT o.typbasetype FROM pg_type o
                          WHERE o.oid = i.oid AND o.typtype = 'd'
                         UNION ALL
                         SELECT o.typelem FROM pg_type o WHERE o.oid = i.oid AND o.typelem <> 0
                       ) n)
                 SELECT jsonb_object_agg(l.oid::text, l.enumlabel)
                   FROM inside i JOIN pg_enum l ON l.enumtypid = i.oid) END
           ) AS described
      FROM base b
      JOIN pg_attribute a ON a.attrelid = relid AND a.attnum = b.attnum
      JOIN pg_type t ON t.oid = b.type
     WHERE t.typtype <> 'd'
       AND (b.is_array OR NOT EXISTS (SELECT FROM pg_type e WHERE e.typarray = t.oid))
)
SELECT jsonb_build_object(
         'oid', c.oid::bigint, 'schema', n.nspname, 'table', c.relname,
         'persistence', c.relpersistence,
         'root', CASE WHEN c.relispartition THEN pg_partition_root(c.oid)::oid::bigint END,
         'partitions', CASE WHEN c.relkind = 'p' THEN
             (SELECT coalesce(jsonb_agg(p.relid::oid::bigint), '[]') FROM pg_partition_tree(c.oid) p
               WHERE p.isleaf) END,
         'unlogged', CASE WHEN c.relkind = 'p' THEN
             (SELECT coalesce(jsonb_agg(p.relid::oid::bigint), '[]') FROM pg_partition_tree(c.oid) p
                JOIN pg_class l ON l.oid = p.relid AND l.relpersistence = 'u'
               WHERE p.isleaf) END,
         -- By the weakest of its partitions: each of them writes its own rows.
         'identity', coalesce(
             (SELECT l.relreplident FROM pg_partition_tree(c.oid) p JOIN pg_class l ON l.oid = p.relid
               WHERE c.relkind = 'p' AND l.relkind = 'r' AND l.relreplident IN ('i', 'n') LIMIT 1),
             c.relreplident),
         -- Before, columns that a key only INCLUDEs were told as a part of it.
         'key_alone', true,
         'key', (SELECT coalesce(jsonb_agg(a.attname ORDER BY k.place), '[]')
                   FROM pg_index i
                   CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY AS k(attnum, place)
                   JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
                  WHERE i.indrelid = c.oid AND i.indisprimary
                    -- What a key INCLUDEs tells no rows apart.
                    AND k.place <= i.indnkeyatts),
         -- An UPDATE may give a row the key that another one has still.
         'deferrable', EXISTS (SELECT FROM pg_index i
                   WHERE i.indrelid = c.oid AND i.indisprimary AND NOT i.indimmediate),
         'columns', (SELECT coalesce(jsonb_agg(described ORDER BY attnum), '[]') FROM resolved))
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.oid = relid
$function$;

-- Writes one table's message, as UTF-8 in a database of any encoding: content is sent as it is.
-- Somebody else's DDL never fails because of us.
CREATE OR REPLACE FUNCTION penstock.tell_table_v1(
    relid oid, kind text, tag text, renamed int DEFAULT 0, type_kind text DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET standard_conforming_strings = on
AS $function$
DECLARE
    rewritten text := coalesce(current_setting('penstock.rewritten', true), '');
    asked text := coalesce(current_query(), '');
    shown boolean;
    reason int := 0;
    filled jsonb := NULL;
    leaf record;
    one boolean;
BEGIN
    IF rewritten <> '' THEN
        SELECT coalesce(bit_or(split_part(item, ':', 2)::int), 0) INTO reason
          FROM unnest(string_to_array(rewritten, ',')) AS item
         WHERE split_part(item, ':', 1)::oid = relid
            OR split_part(item, ':', 1)::oid IN (SELECT p.relid FROM pg_partition_tree(relid) p);
    END IF;
    -- What the client sent is what runs where all of its statements are DDL. Any other one may call
    -- a function, and that may run whatever it likes.
    shown := asked ~* '\malter\s+(table|type)\M' AND asked ~* ('^(\s|;|--[^\n]*(\n|$)|'
        '/\*([^*]|\*+[^*/])*\*+/|'
        '(alter|begin|comment|commit|drop|end|grant|lock|revoke|set|start)\M[^;]*(;|$))*$');
    -- A partition that is attached brings rows that nobody inserted.
    IF kind = 'alter' AND (asked ~* 'attach' OR NOT shown) THEN
        filled := '[]';
        FOR leaf IN SELECT p.relid FROM pg_partition_tree(relid) p WHERE p.isleaf LOOP
            EXECUTE format('SELECT EXISTS (SELECT FROM %s)', leaf.relid::regclass) INTO one;
            IF one THEN filled := filled || to_jsonb(leaf.relid::oid::bigint); END IF;
        END LOOP;
    END IF;
    PERFORM pg_logical_emit_message(true, 'penstock.ddl', convert_to((
        penstock.table_v1(relid) || jsonb_build_object(
            'version', 1, 'kind', kind, 'tag', tag, 'renamed', renamed, 'rewritten', reason,
            'using', asked ~* '\musing\M' OR NOT shown,
            'type_kind', type_kind, 'filled', filled))::text, 'UTF8'));
EXCEPTION WHEN OTHERS THEN
    RAISE WARNING 'penstock was not told of this change: %', SQLERRM;
END
$function$;

CREATE OR REPLACE FUNCTION penstock.tell_ddl_v1() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    told record;
BEGIN
    FOR told IN
        WITH RECURSIVE commands AS (
            SELECT d.classid, d.objid, d.objsubid, d.command_tag, d.object_type
              FROM pg_event_trigger_ddl_commands() d
        ), altered AS (
            -- Types, and those that are made of them: arrays, domains, ranges, composite types.
            -- Another name, owner or schema of a composite type is none of its attributes.
            SELECT t.oid, t.typarray, nullif(t.typtype::text, 'c') AS kind
              FROM commands JOIN pg_type t ON t.oid = objid
             WHERE classid = 'pg_type'::regclass
            UNION
            SELECT t.oid, t.typarray, 'c'
              FROM commands JOIN pg_class c ON c.oid = objid AND c.relkind IN ('c', 'r', 'p')
              JOIN pg_type t ON t.oid = c.reltype
             WHERE classid = 'pg_class'::regclass AND command_tag LIKE 'ALTER%'
            UNION
            SELECT t.oid, t.typarray, a.kind
              FROM altered a CROSS JOIN LATERAL (
                SELECT d.objid AS oid FROM pg_depend d
                 WHERE d.refclassid = 'pg_type'::regclass AND d.refobjid = a.oid
                   AND d.classid = 'pg_type'::regclass
                UNION ALL
                SELECT k.reltype FROM pg_depend d JOIN pg_class k ON k.oid = d.objid
                 WHERE d.refclassid = 'pg_type'::regclass AND d.refobjid = a.oid
                   AND d.classid = 'pg_class'::regclass AND k.relkind = 'c'
              ) made JOIN pg_type t ON t.oid = made.oid
        ), heirs AS (
            -- Tables that inherit: what changes their parent changes them, too.
            SELECT c.oid AS relid, objid AS parent, objsubid
              FROM commands JOIN pg_inherits i ON i.inhparent = objid
              JOIN pg_class c ON c.oid = i.inhrelid AND NOT c.relispartition
             WHERE classid = 'pg_class'::regclass AND command_tag = 'ALTER TABLE'
            UNION
            SELECT i.inhrelid, h.parent, h.objsubid
              FROM heirs h JOIN pg_inherits i ON i.inhparent = h.relid
        ), touched AS (
            SELECT objid AS relid, CASE WHEN command_tag LIKE 'ALTER%' THEN objsubid ELSE 0 END
                   AS renamed, NULL::text AS type_kind, false AS beside
              FROM commands WHERE classid = 'pg_class'::regclass
            UNION ALL
            -- A root is told of what concerns its rows, and not of all else: it locks its partitions.
            SELECT pg_partition_root(objid)::oid, 0, NULL, true
              FROM commands JOIN pg_class c ON c.oid = objid
             WHERE classid = 'pg_class'::regclass AND c.relispartition
               AND (c.relkind = 'p' AND command_tag = 'ALTER TABLE' OR c.relpersistence = 'u'
                    OR c.relkind = 'r' AND c.relreplident IN ('i', 'n'))
            UNION ALL
            SELECT h.relid, coalesce(own.attnum, 0), NULL, true
              FROM heirs h LEFT JOIN pg_attribute a ON a.attrelid = h.parent AND a.attnum = h.objsubid
              LEFT JOIN pg_attribute own ON own.attrelid = h.relid AND own.attname = a.attname
            UNION ALL
            SELECT c.oid, 0, NULL, false
              FROM commands JOIN pg_class c ON c.relnamespace = objid
             WHERE classid = 'pg_namespace'::regclass AND command_tag = 'ALTER SCHEMA'
            UNION ALL
            -- By their columns.
            SELECT d.objid, 0, kind, false
              FROM altered t JOIN pg_depend d ON d.refclassid = 'pg_type'::regclass
               AND d.refobjid = t.oid AND d.classid = 'pg_class'::regclass AND d.objsubid <> 0
            UNION ALL
            -- Of a table OF a type the attributes are columns, which follow it (CASCADE).
            SELECT c.oid, coalesce(own.attnum, 0), NULL, false
              FROM commands JOIN pg_class k ON k.oid = objid AND k.relkind = 'c'
              JOIN pg_class c ON c.reloftype = k.reltype
              LEFT JOIN pg_attribute a ON a.attrelid = objid AND a.attnum = objsubid
              LEFT JOIN pg_attribute own ON own.attrelid = c.oid AND own.attname = a.attname
             WHERE classid = 'pg_class'::regclass
        )
        SELECT c.oid, max(renamed) AS renamed, max(type_kind) AS type_kind,
               bool_and(beside) AS beside
          FROM touched JOIN pg_class c ON c.oid = relid
         WHERE c.relkind IN ('r', 'p') AND c.relpersistence <> 't'
         GROUP BY c.oid ORDER BY c.oid
    LOOP
        PERFORM penstock.tell_table_v1(
            told.oid,
            CASE WHEN told.beside OR tg_tag LIKE 'ALTER%' THEN 'alter' ELSE 'create' END, tg_tag,
            told.renamed, told.type_kind);
    END LOOP;
    PERFORM set_config('penstock.rewritten', '', true);
EXCEPTION WHEN OTHERS THEN
    RAISE WARNING 'penstock was not told of this change: %', SQLERRM;
END
$function$;

CREATE OR REPLACE FUNCTION penstock.tell_drop_v1() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    gone record;
BEGIN
    FOR gone IN
        SELECT objid, schema_name, object_name FROM pg_event_trigger_dropped_objects()
         WHERE object_type = 'table' AND NOT is_temporary
    LOOP
        PERFORM pg_logical_emit_message(true, 'penstock.ddl', convert_to(jsonb_build_object(
            'version', 1, 'kind', 'drop', 'tag', tg_tag, 'oid', gone.objid::bigint,
            'schema', gone.schema_name, 'table', gone.object_name)::text, 'UTF8'));
    END LOOP;
EXCEPTION WHEN OTHERS THEN
    RAISE WARNING 'penstock was not told of this change: %', SQLERRM;
END
$function$;

-- Fires before a table is rewritten; what it notes goes into the message at the command's end.
CREATE OR REPLACE FUNCTION penstock.tell_rewrite_v1() RETURNS event_trigger
LANGUAGE plpgsql
AS $function$
BEGIN
    PERFORM pg_catalog.set_config('penstock.rewritten', pg_catalog.concat_ws(',',
        nullif(pg_catalog.current_setting('penstock.rewritten', true), ''),
        pg_catalog.format('%s:%s', pg_catalog.pg_event_trigger_table_rewrite_oid()::oid::bigint,
            pg_catalog.pg_event_trigger_table_rewrite_reason())), true);
EXCEPTION WHEN OTHERS THEN
    RAISE WARNING 'penstock was not told of this rewrite: %', SQLERRM;
END
$function$;

DROP EVENT TRIGGER IF EXISTS penstock_ddl_v1;
CREATE EVENT TRIGGER penstock_ddl_v1 ON ddl_command_end
    WHEN TAG IN ('CREATE TABLE', 'CREATE TABLE AS', 'SELECT INTO', 'CREATE SCHEMA', 'ALTER TABLE',
                 'ALTER TYPE', 'ALTER SCHEMA')
    EXECUTE FUNCTION penstock.tell_ddl_v1();
DROP EVENT TRIGGER IF EXISTS penstock_drop_v1;
CREATE EVENT TRIGGER penstock_drop_v1 ON sql_drop EXECUTE FUNCTION penstock.tell_drop_v1();
DROP EVENT TRIGGER IF EXISTS penstock_rewrite_v1;
CREATE EVENT TRIGGER penstock_rewrite_v1 ON table_rewrite
    EXECUTE FUNCTION penstock.tell_rewrite_v1();
ALTER EVENT TRIGGER penstock_ddl_v1 ENABLE ALWAYS;
ALTER EVENT TRIGGER penstock_drop_v1 ENABLE ALWAYS;
ALTER EVENT TRIGGER penstock_rewrite_v1 ENABLE ALWAYS;
