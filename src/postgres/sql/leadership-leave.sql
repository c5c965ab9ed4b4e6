-- $1 member.

DELETE FROM {{members}} WHERE member = $1{{within}}
