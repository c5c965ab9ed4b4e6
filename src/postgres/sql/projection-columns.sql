-- The columns of a view. $1 its table. `ambiguous`: texts that differ may be equal. `hides`: row-level security applies to this
-- role, so that an UPDATE passes over rows without a word. A cast to the bare type (typmod -1) leaves it to the column to refuse a
-- value that is too long: a cast to varchar(3) would cut it off without a word.

SELECT attribute.attname AS name, format_type(attribute.atttypid, -1) AS type,
       COALESCE(NULLIF(kind.typbasetype, 0), kind.oid) IN ('json'::regtype, 'jsonb'::regtype) AS json,
       kind.typcategory = 'A' AS list,
       attribute.attgenerated <> '' OR attribute.attidentity = 'a' AS generated,
       EXISTS (
         SELECT FROM pg_index AS index
         WHERE index.indrelid = attribute.attrelid AND index.indisunique AND index.indisvalid AND index.indimmediate
           AND index.indnkeyatts = 1 AND index.indpred IS NULL AND index.indkey[0] = attribute.attnum
       ) AS is_unique,
       EXISTS (
         SELECT FROM pg_collation AS known WHERE known.oid = attribute.attcollation AND NOT known.collisdeterministic
       ) AS ambiguous,
       row_security_active(attribute.attrelid) AS hides
FROM pg_attribute AS attribute JOIN pg_type AS kind ON kind.oid = attribute.atttypid
WHERE attribute.attrelid = $1::text::regclass AND attribute.attnum > 0 AND NOT attribute.attisdropped
