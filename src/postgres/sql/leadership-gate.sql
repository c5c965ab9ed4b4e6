-- Only one relay at a time decides whether it may join: the next statement must see what the one before it did.

SELECT shard FROM {{terms}} WHERE shard = -1 FOR UPDATE
