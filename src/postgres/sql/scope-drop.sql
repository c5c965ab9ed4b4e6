-- Removes who works on what.

DROP TABLE IF EXISTS {{terms}}, {{members}};
