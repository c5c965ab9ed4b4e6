-- Projections, version 2: which event stands at the position of a checkpoint, so that a log that was restored to an earlier
-- time, and has grown past that position again, is known by the other event it has there.
--
-- event_id is that of event_position. Code of version 1 moves position alone, and what it leaves here is of no use then.

ALTER TABLE {{projections}}
  ADD COLUMN IF NOT EXISTS event_position bigint,
  ADD COLUMN IF NOT EXISTS event_id text;
