-- Who lives, and in which mode. By name, in an order that does not depend on the database's language.

SELECT member, mode FROM {{members}} WHERE expires_at > clock_timestamp(){{within}} ORDER BY member COLLATE "C"
