import type pg from 'pg'
import { saga } from '../../../src/saga/index.ts'

/** Three steps that wait at a gate each; the last is a transaction. */
export const gatedSaga = (gate: (name: string) => Promise<void>) =>
  saga('gated', { version: 1 })
    .step('a', () => gate('a'), { timeout: '10m' })
    .step('b', () => gate('b'), { timeout: '10m' })
    .transaction('c', (c, tx: pg.PoolClient) => tx.query('INSERT INTO effects VALUES ($1)', [c.key]).then(() => 'c'), {
      timeout: '10m',
    })
    .step('d', () => 'd')
