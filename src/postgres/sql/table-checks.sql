-- Asked once by a relay that opens the outbox. $1 whether published events are removed. For each of its tables to which
-- row-level security applies here: its name, and whether some policy lets this role see rows, change them, remove them.
-- Restrictive policies only take away; which rows that hides cannot be known.

SELECT class.oid::regclass::text AS name,
  COALESCE(bool_or(policy.polcmd IN ('*', 'r')), false) AS sees,
  COALESCE(bool_or(policy.polcmd IN ('*', 'w')), false) AS changes,
  COALESCE(bool_or(policy.polcmd IN ('*', 'd')), false) OR class.oid <> '{{outbox}}'::regclass OR NOT $1::text::bool
    AS removes
FROM pg_class class LEFT JOIN pg_policy policy ON policy.polrelid = class.oid AND policy.polpermissive
  AND EXISTS (SELECT 1 FROM unnest(policy.polroles) AS role WHERE role = 0 OR pg_has_role(role, 'USAGE'))
WHERE class.oid IN ('{{outbox}}'::regclass, '{{terms}}'::regclass, '{{members}}'::regclass)
  AND row_security_active(class.oid)
GROUP BY class.oid
