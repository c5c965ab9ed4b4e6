-- Only when tenants are used: what one tenant has in which state, so that a backlog is found among millions that are
-- published. Every fresh row enters it, so every enqueue pays for it.

CREATE INDEX IF NOT EXISTS {{outbox_backlog}} ON {{outbox}} (tenant_id, state, sequence);
