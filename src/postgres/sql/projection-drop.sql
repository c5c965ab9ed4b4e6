-- Drops the tables of projections. The views themselves are the user's.

DROP TABLE IF EXISTS {{audit}};
DROP TABLE IF EXISTS {{keys}};
DROP TABLE IF EXISTS {{parked}};
DROP TABLE IF EXISTS {{projections}};
