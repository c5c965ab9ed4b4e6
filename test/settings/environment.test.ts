import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { expect, test } from 'vitest'
import { runScript } from '../../src/testing/index.ts'
import { freshDatabase } from '../support/services.ts'

test('the library reads no environment by itself: not when it is imported, nor when it runs', async () => {
  const database = await freshDatabase()
  try {
    const script = runScript({
      script: new URL('./environment/child.ts', import.meta.url),
      // Were they read, nothing would go out.
      env: { DATABASE: database.url, OUTBOX_RELAY_ENABLED: 'false', OUTBOX_RELAY_BATCH_SIZE: '7' },
    })
    const { stdout, stderr } = await script.finished
    const told = JSON.parse(stdout.trim().split('\n').at(-1) || JSON.stringify({ stderr }))
    expect(told).toMatchObject({
      published: ['order.placed', 'order.placed'],
      before: [],
      asked: { relay: { enabled: false, batch: 7 }, cleaner: {} },
    })
    expect(told.files).toBeGreaterThan(15)
    // What is asked for is seen, so the silence before was one.
    expect(told.after).toBeGreaterThan(1)
  } finally {
    await database.drop()
  }
})

test('and no file of it names the environment, but the crash points of tests', () => {
  const folder = fileURLToPath(new URL('../../src', import.meta.url))
  const files = readdirSync(folder, { recursive: true, encoding: 'utf8' }).filter((file) => file.endsWith('.ts'))
  const code = (file: string) => readFileSync(join(folder, file), 'utf8').replaceAll(/^\s*(?:\/\*\*|\*|\/\/).*$/gm, '')
  expect(files.length).toBeGreaterThan(100)
  expect(files.filter((file) => /process\s*\.\s*env|\benv\b[^\n]*from 'node:process'/.test(code(file)))).toEqual([
    'testing/crash.ts',
  ])
})
