import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'
import { describe, expect, it } from 'vitest'
import { Flow, PHASES, type Phase, run, Supervisor, Task, Worker } from '../../src/flow/index.ts'
import { FakeClock, seededRandom } from '../../src/testing/index.ts'
import { deferred, record } from './support.ts'

class Role extends Worker {
  readonly name: string
  override readonly phase: Phase
  readonly log: string[]
  failed: (error: unknown) => void = () => {}
  starting: () => unknown = () => {}
  stopping: () => unknown = () => {}

  constructor(name: string, phase: Phase, log: string[]) {
    super()
    this.name = name
    this.phase = phase
    this.log = log
  }

  async runOnce(): Promise<void> {}

  protected override async prepare(): Promise<void> {
    await this.starting()
    this.log.push(`start ${this.name}`)
  }

  protected override async run(signal: AbortSignal): Promise<void> {
    await new Promise<void>((resolve, reject) => {
      this.failed = reject
      signal.addEventListener('abort', () => resolve())
    })
  }

  protected override async ended(): Promise<void> {
    await this.stopping()
    this.log.push(`stop ${this.name}`)
  }
}

const turn = () => new Promise((resolve) => setImmediate(resolve))

function everything(log: string[]): Role[] {
  // In no particular order.
  return [...PHASES.slice(2), ...PHASES.slice(0, 2)].map((phase) => new Role(phase, phase, log))
}

describe('run', () => {
  it('stops in order: requests, consumers, relays, connections, stores; each phase ends before the next begins', async () => {
    const log: string[] = []
    const roles = everything(log)
    for (const role of roles) role.stopping = turn
    const server = { name: 'http', phase: 'requests', stop: () => void log.push('stop http') } as const
    const controller = new AbortController()
    const running = run([...roles, server], { signal: controller.signal })
    await turn()
    expect(log).toEqual([...PHASES].reverse().map((phase) => `start ${phase}`))
    log.length = 0
    controller.abort()
    await running
    expect(log).toEqual([
      'stop http',
      'stop requests',
      'stop consumers',
      'stop relays',
      'stop connections',
      'stop stores',
    ])
  })

  it('a worker that cannot go on stops the others in order, and its error is thrown', async () => {
    const log: string[] = []
    const roles = everything(log)
    const running = run(roles, { signal: new AbortController().signal })
    const outcome = expect(running).rejects.toThrow('cannot go on')
    await turn()
    roles.find(({ phase }) => phase === 'relays')!.failed(new Error('cannot go on'))
    await outcome
    // It gives back what it has at once; then the others go.
    const others = PHASES.filter((phase) => phase !== 'relays')
    expect(log.filter((line) => line.startsWith('stop'))).toEqual(['relays', ...others].map((phase) => `stop ${phase}`))
  })

  it('a worker that cannot start stops the others, also one that was still starting', async () => {
    const log: string[] = []
    const [bad, slow] = [new Role('bad', 'relays', log), new Role('slow', 'relays', log)]
    bad.starting = () => {
      throw new Error('wrong settings')
    }
    const started = deferred()
    slow.starting = () => started.promise
    const running = run([bad, slow, new Role('never', 'consumers', log)], { signal: new AbortController().signal })
    const outcome = expect(running).rejects.toThrow('wrong settings')
    await turn()
    started.resolve()
    await outcome
    expect(log).toEqual(['start slow', 'stop never', 'stop bad', 'stop slow'])
    expect(slow.started).toBe(false)
  })

  it('errors while stopping are gathered and keep nobody from being stopped', async () => {
    const log: string[] = []
    const roles = everything(log)
    for (const role of roles.slice(0, 2)) {
      role.stopping = () => {
        throw new Error(`${role.name} is stuck`)
      }
    }
    const controller = new AbortController()
    const running = run(roles, { signal: controller.signal })
    const outcome = expect(running).rejects.toMatchObject({
      errors: [{ message: 'relays is stuck' }, { message: 'connections is stuck' }],
    })
    await turn()
    controller.abort()
    await outcome
    expect(log.filter((line) => line.startsWith('stop'))).toEqual(['stop requests', 'stop consumers', 'stop stores'])
  })

  it('a member whose stop hangs is an error once its time is over, and keeps nobody from being stopped', async () => {
    const log: string[] = []
    const clock = new FakeClock()
    const server = { name: 'http', phase: 'requests', stop: () => new Promise(() => {}) } as const
    const whole = new Supervisor({ name: 'all', stopWithin: '1m', clock })
    for (const member of [server, new Role('relay', 'relays', log)]) await whole.add(member)
    await whole.start()
    const stopping = whole.stop()
    const outcome = expect(stopping).rejects.toMatchObject({
      errors: [{ code: 'STOP_TIMEOUT', message: expect.stringMatching(/^http has not stopped within 60000 ms/) }],
    })
    await clock.advance(59_999)
    expect(log).toEqual(['start relay'])
    await clock.advance(1)
    await outcome
    expect(log).toEqual(['start relay', 'stop relay'])
  })

  it('run says how long the stop of a member may take', async () => {
    const log: string[] = []
    const server = { name: 'http', phase: 'requests', stop: () => new Promise(() => {}) } as const
    const members = [server, new Role('store', 'stores', log)]
    const running = run(members, { signal: AbortSignal.abort(), stopWithin: 1 })
    await expect(running).rejects.toMatchObject({ errors: [{ code: 'STOP_TIMEOUT' }] })
    expect(log).toEqual(['stop store'])
    await expect(run([], { signal: AbortSignal.abort(), stopWithin: 'soon' as never })).rejects.toThrow('stopWithin')
  })

  it('a signal that aborts while it starts: what has started is stopped, the rest is not started', async () => {
    const log: string[] = []
    const controller = new AbortController()
    const roles = everything(log)
    roles.find(({ phase }) => phase === 'relays')!.starting = () => controller.abort()
    await run(roles, { signal: controller.signal })
    expect(log.filter((line) => line.startsWith('start'))).toEqual([
      'start stores',
      'start connections',
      'start relays',
    ])
    expect(roles.some(({ started }) => started)).toBe(false)
  })

  it('a worker that never comes to an end of its start keeps nobody from stopping, and does not run later', async () => {
    const log: string[] = []
    class Hanging extends Role {
      protected override async run(): Promise<void> {
        log.push('runs')
      }
    }
    const [hanging, other] = [new Hanging('hanging', 'relays', log), new Role('other', 'stores', log)]
    const there = deferred()
    hanging.starting = () => there.promise
    const controller = new AbortController()
    const running = run([hanging, other], { signal: controller.signal })
    await turn()
    controller.abort()
    // Each waits a second for it: the whole, and the one that hangs.
    await running
    there.resolve()
    await turn()
    expect(log).toEqual(['start other', 'stop hanging', 'stop other', 'start hanging'])
    expect(hanging.started).toBe(false)
  })

  it('needs a signal and members that can be stopped', async () => {
    await expect(run([], undefined as never)).rejects.toThrow('run: a signal is needed')
    await expect(run([], { sginal: 1 } as never)).rejects.toThrow('did you mean "signal"?')
    const { signal } = new AbortController()
    await expect(run({ phase: 'stores', stop() {} } as never, { signal })).rejects.toThrow(
      'run: an object is not a list of members; give an array: run([relay], { signal })',
    )
    await expect(run([{ stop() {} } as never], { signal })).rejects.toThrow('a phase (requests, consumers')
    await expect(run([{ phase: 'stores' } as never], { signal })).rejects.toThrow('stop()')
  })

  it.each(['SIGTERM', 'SIGINT'] as const)(
    '%s ends a process in order, after what is in flight has finished',
    async (name) => {
      const script = fileURLToPath(new URL('lifecycle-child.ts', import.meta.url))
      const child = spawn(process.execPath, ['--import', 'tsx', script], { stdio: ['ignore', 'pipe', 'inherit'] })
      let text = ''
      for await (const chunk of child.stdout.setEncoding('utf8')) {
        text += chunk
        if (/handling$/m.test(text) && !child.killed) child.kill(name)
      }
      if (child.exitCode === null) await once(child, 'exit')
      expect(text.trim().split('\n')).toEqual([
        'handling',
        `received ${name} [STOPPED]`,
        'http closed',
        'handled',
        'settled done',
        'session closed',
        'pool closed',
        'bye',
      ])
      expect(child.exitCode).toBe(0)
    },
  )

  it('a second signal ends a process at once, whatever is in flight', async () => {
    const script = fileURLToPath(new URL('lifecycle-child.ts', import.meta.url))
    const child = spawn(process.execPath, ['--import', 'tsx', script, 'stuck'], {
      stdio: ['ignore', 'pipe', 'inherit'],
    })
    let text = ''
    let sent = 0
    for await (const chunk of child.stdout.setEncoding('utf8')) {
      text += chunk
      if (sent === 0 && /handling$/m.test(text)) sent += Number(child.kill('SIGTERM'))
      if (sent === 1 && /http closed$/m.test(text)) sent += Number(child.kill('SIGINT'))
    }
    if (child.exitCode === null) await once(child, 'exit')
    expect(text.trim().split('\n')).toEqual(['handling', 'received SIGTERM [STOPPED]', 'http closed'])
    expect(child.exitCode).toBe(1)
  })
})

describe('task', () => {
  it('runs, pauses, and goes on at once where there is more', async () => {
    const clock = new FakeClock()
    const times: number[] = []
    const began = clock.monotonic()
    let more = 2
    const task = new Task({
      name: 't',
      every: '10s',
      clock,
      run: async () => {
        times.push(clock.monotonic() - began)
        return more-- > 0
      },
      again: (round) => round,
    })
    await task.start()
    await clock.advance(25_000)
    expect(times).toEqual([0, 0, 0, 10_000, 20_000])
    await task.stop()
    await clock.advance(60_000)
    expect(times).toHaveLength(5)
  })

  it('a round that fails is told, and the next waits longer', async () => {
    const clock = new FakeClock()
    const telemetry = record()
    let calls = 0
    const run = async () => {
      calls++
      throw new Error('no')
    }
    const task = new Task({ name: 't', every: 1000, clock, run, random: seededRandom(1), backoff: { jitter: 0 } })
    await task.start()
    await clock.advance(120_000)
    expect(telemetry.of('task.failed').map(({ retryIn }) => retryIn)).toEqual([
      1000, 2000, 4000, 8000, 16_000, 32_000, 60_000,
    ])
    expect(calls).toBe(7)
    await expect(task.runOnce()).rejects.toThrow('no')
    await task.stop()
  })

  it('a stop waits for the round, which is told by its signal', async () => {
    const clock = new FakeClock()
    const round = deferred()
    let told = false
    const run = (signal: AbortSignal) => {
      signal.addEventListener('abort', () => {
        told = true
      })
      return round.promise
    }
    const task = new Task({ name: 't', every: 1000, clock, run })
    await task.start()
    let stopped = false
    const stopping = task.stop().then(() => {
      stopped = true
    })
    await clock.settle()
    expect([told, stopped]).toEqual([true, false])
    round.resolve()
    await stopping
  })

  it('refuses wrong options', () => {
    const run = async () => {}
    expect(() => new Task({ name: 't', every: -1, run })).toThrow('task t: every: -1 is not a duration')
    expect(() => new Task({ name: 't', evry: 1, run } as never)).toThrow('did you mean "every"?')
  })
})

describe('bad input to a flow', () => {
  const from = { name: 's', features: {}, open: () => Promise.reject(new Error('opened')) }
  const step = { each: () => {} }

  it('is one clear error each, before anything moves', () => {
    const refused: [object, string, string?][] = [
      [{ from, step, concurency: 1 }, 'flow f: unknown option "concurency"; did you mean "concurrency"?'],
      [{ from, step, concurrency: 0 }, 'flow f: concurrency: 0 is not allowed'],
      [{ from, step, concurrency: '3' }, 'flow f: concurrency: "3" is not allowed'],
      [{ from, step, take: -1 }, 'flow f: take: -1 is not allowed'],
      [{ from, step, buffer: { count: 0 } }, 'flow f: buffer.count: 0'],
      [{ from, step, buffer: { byte: 1 } }, 'did you mean "bytes"?'],
      [{ from, step, grace: '-5s' }, 'flow f: grace: "-5s" is not a duration'],
      [{ from, step, poll: -1 }, 'flow f: poll: -1 is not a duration'],
      [{ from, step, maxPol: 1 }, 'did you mean "maxPoll"?'],
      [{ from, step, outage: { maximum: 1 } }, 'flow f: outage: unknown option "maximum"'],
      [{ from, step, retry: { attempts: 0 } }, 'flow f: retry.attempts: 0'],
      [{ from, step, retry: { backof: {} } }, 'did you mean "backoff"?'],
      [{ from, step, retry: { deadKey: 'blok' } }, 'did you mean "block"?'],
      [{ from: {}, step }, 'flow f: from: an object is not a source'],
      [{ step }, 'flow f: from: undefined is not a source'],
      [{ from }, 'flow f: step: give { each }'],
      [{ from, step: { batch: () => [], ordered: true } }, 'flow f: step.size'],
    ]
    for (const [options, text] of refused) {
      expect(() => new Flow({ name: 'f', ...options } as never), text).toThrow(text)
    }
  })
})
