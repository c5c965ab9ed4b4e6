import pg from 'pg'
import { afterEach, expect, test } from 'vitest'
import { uuidv7 } from '../../../src/core/index.ts'
import { postgres } from '../../../src/postgres/index.ts'
import { SagaAdmin, SagaClient } from '../../../src/saga/index.ts'
import { faultProxy, runScript } from '../../../src/testing/index.ts'
import { bundled } from '../../support/bundled.ts'
import { describeWith, freshDatabase } from '../../support/services.ts'
import { eventually } from '../../support/wait.ts'
import { gatedSaga } from './suspended.ts'

describeWith(['postgres'], 'a runner that is suspended', () => {
  const ends: (() => unknown)[] = []
  afterEach(async () => {
    for (const end of ends.splice(0).reverse()) await end()
  })

  test('an operator raises the version: it goes on; a claim: it stops; the answer to its COMMIT is lost: once all the same', {
    timeout: 60_000,
  }, async () => {
    const database = await freshDatabase('postgres')
    ends.push(() => database.drop())
    const pool = new pg.Pool({ connectionString: database.url, max: 5 })
    pool.on('error', () => {})
    ends.push(() => pool.end())
    const { hostname: host, port } = new URL(database.url)
    const proxy = await faultProxy({ host, port: Number(port) })
    ends.push(() => proxy.close())
    const db = postgres({ pool, sagas: true })
    await db.migrate()
    await pool.query('CREATE TABLE gates (name text); CREATE TABLE effects (key text)')
    const one = gatedSaga(async () => {})
    const open = (name: string) => pool.query('INSERT INTO gates VALUES ($1)', [name])
    const LEASE = 3000
    const env = { JOB: JSON.stringify({ url: proxy.url(database.url), direct: database.url, lease: LEASE }) }
    const child = runScript({ script: bundled(new URL('./suspended-child.ts', import.meta.url)), env })
    ends.push(async () => {
      child.kill()
      await child.finished.catch(() => {})
    })
    await child.line('ready', 30_000)
    const id = await db.withTransaction((tx) => new SagaClient(one, db).start(tx, {}))
    const load = async () => (await db.sagas.load(undefined, id))!

    // Suspended in the first step; an operator writes meanwhile.
    await child.line('at a', 20_000)
    child.pause()
    const before = await load()
    await new SagaAdmin({ store: db, sagas: [one] }).retry(id, { by: 'ann', note: 'a look' })
    expect(await load()).toMatchObject({ version: before.version + 1, runner: before.runner })
    await open('a')
    child.resume()
    await child.line('at b', 20_000)
    expect(await load()).toMatchObject({ runner: before.runner, steps: [{ status: 'completed' }, { name: 'b' }] })

    // Suspended in the second; another takes it over.
    child.pause()
    const mine = uuidv7()
    const claimed = await eventually('it can be claimed', async () => {
      const claim = { definitions: [one.definition], count: 1, takeovers: 1, runner: mine, lease: 60_000 }
      return (await db.sagas.claim(claim))[0]
    })
    expect(claimed).toMatchObject({ takenOver: true, saga: { id, steps: [{}, { status: 'pending' }] } })
    const theirs = await load()
    await open('b')
    child.resume()
    await child.line('fenced', 20_000)
    expect(await load()).toEqual(theirs)

    // Given back: it is claimed again, and the answer to the COMMIT of the third step is lost.
    const { version, type, status, held, error, steps } = theirs
    const state = { id, type, status, held, error, steps }
    const change = { id, version, runner: mine, state, steps: [], lease: LEASE, progress: true }
    expect(await db.sagas.save(undefined, { ...change, claim: 'release', wakeIn: 0 })).toBe(true)
    await child.line('at COMMIT', 20_000)
    proxy.halfOpen('downstream')
    await open('COMMIT')
    await eventually('it is committed', async () => (await load()).steps[2]?.status === 'completed')
    await proxy.restore()
    proxy.cut()
    await eventually('it has ended', async () => (await load()).endedAt !== undefined, { limit: 30_000 })
    expect(await load()).toMatchObject({ status: 'completed', held: undefined })
    expect((await pool.query('SELECT count(*)::int AS n FROM effects')).rows[0].n).toBe(1)
  })
})
