/** Starts what a test may start, tells its parent about it, and never ends. */
import { spawn } from 'node:child_process'
import { renameSync, writeFileSync } from 'node:fs'
import { test } from 'vitest'
import { privatePostgres, service } from '../../support/services.ts'

test('hangs', async () => {
  const server = await privatePostgres()
  // A child that a test forgot; detached, so that it outlives its parent unless somebody ends it.
  const forgotten = spawn('sleep', ['1000'], { detached: true, stdio: 'ignore' })
  const { run } = JSON.parse(process.env['WAYBILL_SERVICES']!)
  const pids = [service('postgres').pid, server.pid, forgotten.pid, process.pid, process.ppid]
  const file = process.env['WAYBILL_SAMPLE_FILE']!
  writeFileSync(`${file}.new`, JSON.stringify({ run, pids }))
  renameSync(`${file}.new`, file)
  await new Promise(() => {})
})
