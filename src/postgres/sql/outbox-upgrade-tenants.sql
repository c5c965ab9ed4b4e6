-- Only when tenants are used: what is one tenant's. Every fresh row enters it, so every enqueue pays for it.

CREATE INDEX IF NOT EXISTS {{outbox_tenant}} ON {{outbox}} (tenant_id, sequence);
