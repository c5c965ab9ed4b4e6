import { describe, expect, it } from 'vitest'
import { type Phase, run, Supervisor, Task, Worker } from '../../src/flow/index.ts'
import { FakeClock } from '../../src/testing/index.ts'
import { deferred, record } from './support.ts'

/** Runs until it is told to fail or to stop; each start can be made to fail. */
class Role extends Worker<string> {
  readonly name: string
  override readonly phase: Phase
  starts = 0
  ends = 0
  fail: (error: unknown) => void = () => {}
  starting: () => unknown = () => {}

  constructor(name: string, clock: FakeClock, phase: Phase = 'relays') {
    super(clock)
    this.name = name
    this.phase = phase
  }

  async runOnce(): Promise<string> {
    return `${this.name} ran`
  }

  protected override async prepare(): Promise<void> {
    this.starts++
    await this.starting()
  }

  protected override async run(signal: AbortSignal): Promise<void> {
    this.condition.running()
    await new Promise<void>((resolve, reject) => {
      this.fail = reject
      signal.addEventListener('abort', () => resolve())
    })
  }

  protected override async ended(): Promise<void> {
    this.ends++
  }
}

const at = (clock: FakeClock, ms = 0) => new Date(clock.now() + ms)

function setup(onFailure?: 'restart' | 'fatal') {
  const clock = new FakeClock()
  const telemetry = record()
  const supervisor = new Supervisor({ name: 'app', clock, backoff: { jitter: 0 } })
  const role = new Role('relay', clock)
  const other = new Role('consumer', clock, 'consumers')
  void supervisor.add(role, onFailure)
  void supervisor.add(other)
  return { clock, telemetry, supervisor, role, other }
}

describe('a worker whose run rejects', () => {
  it('has given back what it had, says why it stopped, is told of, and can be started again', async () => {
    const clock = new FakeClock()
    const telemetry = record()
    const role = new Role('r', clock)
    await role.start()
    const { finished } = role
    await clock.advance(1000)
    role.fail(new Error('broken'))
    await expect(finished).rejects.toThrow('broken')
    expect([role.started, role.ends]).toEqual([false, 1])
    expect(role.status()).toEqual({ name: 'r', state: 'stopped', reason: 'Error: broken', since: at(clock) })
    expect(telemetry.of('worker.failed')).toMatchObject([{ worker: 'r', error: { message: 'broken' } }])
    await role.start()
    expect([role.started, role.status().state]).toEqual([true, 'running'])
    await role.stop()
    expect(role.ends).toBe(2)
  })

  it('rejects its stop too, once', async () => {
    const clock = new FakeClock()
    const role = new Role('r', clock)
    await role.start()
    role.fail(new Error('broken'))
    await expect(role.stop()).rejects.toThrow('broken')
    await role.stop()
  })
})

describe('a child that ends with an error', () => {
  it('is started again after a pause that grows, and both the child and the whole say so', async () => {
    const { clock, telemetry, supervisor, role } = setup()
    await supervisor.start()
    const since: Date[] = []
    for (const pause of [1000, 2000, 4000]) {
      role.fail(new Error('broken'))
      await clock.settle()
      since.push(at(clock))
      const failing = { state: 'failing', reason: 'Error: broken', since: at(clock), retryAt: at(clock, pause) }
      expect(supervisor.status().children![0]).toEqual({ name: 'relay', ...failing })
      expect(supervisor.status()).toMatchObject({ name: 'app', ...failing, reason: 'relay: Error: broken' })
      const { starts } = role
      await clock.advance(pause - 1)
      expect(role.starts).toBe(starts)
      await clock.advance(1)
      expect([role.starts, supervisor.status().state]).toEqual([starts + 1, 'running'])
    }
    const told = telemetry.of('worker.restarting')
    expect(told.map(({ retryIn, failures }) => [retryIn, failures])).toEqual([
      [1000, 1],
      [2000, 2],
      [4000, 3],
    ])
    expect(told[0]).toMatchObject({ worker: 'relay', parent: 'app', error: { message: 'broken' } })
    await supervisor.stop()
    expect(role.ends).toBe(4)
  })

  it('starts with a short pause again after it has run for a minute', async () => {
    const { clock, telemetry, supervisor, role } = setup()
    await supervisor.start()
    for (const ran of [0, 0, 59_000, 61_000]) {
      await clock.advance(ran)
      role.fail(new Error('broken'))
      await clock.until(() => supervisor.status().state === 'running')
    }
    expect(telemetry.of('worker.restarting').map(({ failures }) => failures)).toEqual([1, 2, 3, 1])
    await supervisor.stop()
  })

  it('and cannot be started again is tried until it can, and failing all the while', async () => {
    const { clock, telemetry, supervisor, role } = setup()
    await supervisor.start()
    const began = at(clock)
    role.starting = () => Promise.reject(new Error('no server'))
    role.fail(new Error('broken'))
    await clock.advance(3500)
    expect(supervisor.status().children![0]).toMatchObject({
      state: 'failing',
      reason: 'Error: no server',
      since: began,
    })
    expect(telemetry.of('worker.restarting').map(({ retryIn }) => retryIn)).toEqual([1000, 2000, 4000])
    role.starting = () => {}
    await clock.advance(4000)
    expect(supervisor.status().state).toBe('running')
    await supervisor.stop()
  })

  it('is not started again once the whole stops, nor does its old error reach who stops it', async () => {
    const { clock, supervisor, role, other } = setup()
    await supervisor.start()
    role.fail(new Error('broken'))
    await clock.advance(500)
    await supervisor.stop()
    expect([clock.sleepers, other.started, supervisor.status().state]).toEqual([0, false, 'stopped'])
    await clock.advance(60_000)
    expect(role.starts).toBe(1)
  })

  it('is stopped after its start when the whole stops in between', async () => {
    const { clock, supervisor, role } = setup()
    await supervisor.start()
    const started = deferred()
    role.starting = () => started.promise
    role.fail(new Error('broken'))
    await clock.advance(1000)
    const stopping = supervisor.stop()
    await clock.settle()
    started.resolve()
    await stopping
    expect([role.started, role.starts]).toEqual([false, 2])
  })

  it('ends the whole if that is fatal: the others are stopped, and the whole can be started again', async () => {
    const { clock, telemetry, supervisor, role, other } = setup('fatal')
    await supervisor.start()
    const { finished } = supervisor
    role.fail(new Error('broken'))
    await expect(finished).rejects.toThrow('broken')
    expect([other.started, supervisor.started]).toEqual([false, false])
    expect(supervisor.status()).toMatchObject({ state: 'stopped', reason: 'Error: broken' })
    expect(telemetry.of('worker.restarting')).toEqual([])
    await supervisor.start()
    expect([role.started, other.started, supervisor.status().state]).toEqual([true, true, 'running'])
    await supervisor.stop()
    await clock.settle()
  })

  it('of a whole that is itself a child: the parent starts the whole again', async () => {
    const { clock, supervisor, role, other } = setup('fatal')
    const process = new Supervisor({ name: 'process', clock, backoff: { jitter: 0 } })
    await process.add(supervisor)
    await process.start()
    role.fail(new Error('broken'))
    await clock.settle()
    expect(process.status()).toMatchObject({ state: 'failing', reason: 'app: Error: broken', retryAt: at(clock, 1000) })
    await clock.advance(1000)
    expect([role.starts, other.starts, process.status().state]).toEqual([2, 2, 'running'])
    await process.stop()
  })
})

describe('members', () => {
  it('are added and removed while it runs', async () => {
    const { clock, supervisor, role } = setup()
    await supervisor.start()
    const late = new Role('late', clock)
    await supervisor.add(late)
    expect([late.started, supervisor.status().children!.map(({ name }) => name)]).toEqual([
      true,
      ['relay', 'consumer', 'late'],
    ])
    await supervisor.remove(late)
    await supervisor.remove(late)
    expect([late.started, late.ends]).toEqual([false, 1])
    role.fail(new Error('broken'))
    await clock.settle()
    await supervisor.remove(role)
    await clock.advance(60_000)
    expect([role.starts, supervisor.status().state]).toEqual([1, 'running'])
    await supervisor.stop()
    expect(late.ends).toBe(1)
  })

  it('one that cannot start is not kept, and its error is that of add', async () => {
    const { clock, supervisor } = setup()
    await supervisor.start()
    const bad = new Role('bad', clock)
    bad.starting = () => Promise.reject(new Error('wrong settings'))
    await expect(supervisor.add(bad)).rejects.toThrow('wrong settings')
    expect(supervisor.status().children).toHaveLength(2)
    await supervisor.stop()
  })

  it('one that cannot start at first is the error of start, and the others are stopped', async () => {
    const { supervisor, role, other } = setup()
    role.starting = () => Promise.reject(new Error('wrong settings'))
    await expect(supervisor.start()).rejects.toThrow('wrong settings')
    expect([other.started, supervisor.started]).toEqual([false, false])
    expect(supervisor.status()).toMatchObject({ state: 'stopped', reason: 'Error: wrong settings' })
  })

  it('are refused twice, while it stops, and when they are none', async () => {
    const { clock, supervisor, role } = setup()
    await expect(supervisor.add(role)).rejects.toThrow('app: relay is a member already')
    await expect(supervisor.add({ stop() {} } as never)).rejects.toThrow(
      'app: a member must be a worker, or have stop()',
    )
    await supervisor.start()
    const stopping = supervisor.stop()
    await expect(supervisor.add(new Role('late', clock))).rejects.toThrow('app is stopping, and takes no late')
    await stopping
    expect(() => new Supervisor({ name: 'x', backof: {} } as never)).toThrow('did you mean "backoff"?')
  })

  it('without a start are stopped in their turn, and say how they are if they can', async () => {
    const clock = new FakeClock()
    const log: string[] = []
    const supervisor = new Supervisor({ name: 'app', clock })
    const since = at(clock)
    const status = () => ({ name: 'broker', state: 'failing', reason: 'no connection', since }) as const
    await supervisor.add({ phase: 'stores', stop: () => void log.push('pool') })
    await supervisor.add({ phase: 'connections', stop: () => void log.push('broker'), status })
    await supervisor.add(new Task({ name: 't', every: 1000, clock, run: async () => {} }))
    await supervisor.start()
    await clock.settle()
    expect(supervisor.status()).toMatchObject({ state: 'failing', reason: 'broker: no connection', since })
    expect(supervisor.status().children!.map(({ name }) => name)).toEqual(['broker', 't'])
    await supervisor.stop()
    expect(log).toEqual(['broker', 'pool'])
  })

  it('have a round each with runOnce', async () => {
    const { supervisor } = setup()
    expect(await supervisor.runOnce()).toEqual(['relay ran', 'consumer ran'])
  })

  it('of run: one that was started before is watched all the same', async () => {
    const role = new Role('r', new FakeClock())
    await role.start()
    const running = run([role], { signal: new AbortController().signal })
    const outcome = expect(running).rejects.toThrow('broken')
    await new Promise((resolve) => setImmediate(resolve))
    role.fail(new Error('broken'))
    await outcome
    expect(role.starts).toBe(1)
  })
})
