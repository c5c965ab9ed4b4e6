import { expect, test } from 'vitest'
import { examples } from '../../scripts/example.ts'
import { stateFile } from '../../scripts/services/state.ts'

test('each clone remembers its own servers: down in one does not end those of another', () => {
  expect(stateFile('/one/clone/')).not.toBe(stateFile('/another/clone/'))
  expect(stateFile('/one/clone/')).toBe(stateFile('/one/clone/'))
})

test('examples say what they need, and most need nothing', () => {
  const needs = Object.fromEntries(examples().map(({ name, needs }) => [name, needs]))
  expect(needs).toMatchObject({ '01-router': [], '02-postgres-outbox': [], '07-http': [] })
  expect(needs).toMatchObject({ '03-postgres-js': ['DATABASE_URL'], '04-rabbitmq': ['RABBITMQ_URL'] })
  expect(needs).toMatchObject({ '06-kafka': ['KAFKA_URL'], '08-redis': ['REDIS_URL'] })
  expect(needs['order-service']).toEqual(['DATABASE_URL', 'RABBITMQ_URL'])
  for (const { name, about } of examples()) expect(about, name).toMatch(/\.$/)
})
