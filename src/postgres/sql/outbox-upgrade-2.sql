-- The outbox, version 2: larger samples of `state`, so that numbers told from statistics are near the truth, and words
-- for people who look at the table with their own tools. Takes no lock that a relay or a writer would wait for.

ALTER TABLE {{outbox}} ALTER COLUMN state SET STATISTICS 1000;

COMMENT ON TABLE {{outbox}} IS 'Events that committed transactions left to be delivered. Do not delete rows by hand: what is not published would never arrive.';
COMMENT ON COLUMN {{outbox}}.event_id IS 'The id of the event where that is a UUID, else made of source and id; consumers skip what they have seen by it.';
COMMENT ON COLUMN {{outbox}}.sequence IS 'The order of events of one key. Numbers are drawn before the commit, so a lower one may come to light later.';
COMMENT ON COLUMN {{outbox}}.state IS 'ready: may go out now. scheduled: not before available_at. retrying: failed, next try at available_at. leased: a relay has it until available_at. held: an earlier event of its key comes first. published: done. dead: kept for a person.';
COMMENT ON COLUMN {{outbox}}.key IS 'Events of one key are dispatched one at a time, in order.';
COMMENT ON COLUMN {{outbox}}.available_at IS 'When something is to be done with it next; see state.';
COMMENT ON COLUMN {{outbox}}.last_error IS 'Why the last attempt failed. Never holds any of the payload.';
COMMENT ON TABLE {{terms}} IS 'Which relay may settle which shard, until when. epoch grows with every holder.';
COMMENT ON TABLE {{members}} IS 'Relays that live, as far as they have said.';
COMMENT ON TABLE {{audit}} IS 'What people did with the outbox, for good.';
