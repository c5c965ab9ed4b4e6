-- Drops the tables of sagas.

DROP TABLE IF EXISTS {{audit}};
DROP TABLE IF EXISTS {{steps}};
DROP TABLE IF EXISTS {{sagas}};
