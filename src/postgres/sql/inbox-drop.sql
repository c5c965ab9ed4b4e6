-- Removes the inbox.

DROP TABLE IF EXISTS {{inbox}};
