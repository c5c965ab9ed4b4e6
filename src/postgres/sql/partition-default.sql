-- Where events go for which there is no partition yet: late by a cleaner that does not run, but not refused.

CREATE TABLE IF NOT EXISTS {{partition_default}} PARTITION OF {{outbox}} DEFAULT;

ALTER TABLE {{partition_default}} SET ({{storage}});
