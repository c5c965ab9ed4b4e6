-- Only one member at a time decides whether it may join: the next statement must see what the one before it did. The row
-- that all of them lock has no holder. It is there from the start for an outbox, and made by the first to join elsewhere.

INSERT INTO {{terms}} ({{scope}}shard) VALUES ({{value}}-1) ON CONFLICT ({{scope}}shard) DO UPDATE SET holder = ''
