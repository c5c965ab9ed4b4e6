import { mkdtempSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import {
  crashPoint,
  crashPoints,
  everyPointHit,
  publisherPoints,
  runScript,
  runUntilCrash,
  type ScriptResult,
  sourcePoints,
} from '../../src/testing/index.ts'
import { bundled } from '../support/bundled.ts'
import { eventually } from '../support/wait.ts'

const typescript = new URL('./crash-script.ts', import.meta.url)
const script = bundled(typescript)

describe('crash', () => {
  test('a process is killed at the point that was asked for, and nothing after it runs', async () => {
    const result = await runUntilCrash({ script: typescript, args: ['points'], at: 'script.end' })
    expect(result).toMatchObject({ crashed: true, signal: 'SIGKILL', code: null, at: 'script.end' })
    expect(result.hits).toEqual(['script.loop', 'script.end'])
    expect(result.stdout).toContain('round 4')
    expect(result.stdout).not.toMatch(/the end|finally ran|exit handler ran/)
  })

  test('the third time is meant by #3', async () => {
    const result = await runUntilCrash({ script, args: ['points'], at: 'script.loop#3' })
    expect(result).toMatchObject({ crashed: true, hits: ['script.loop'] })
    expect(result.stdout).toBe('round 0\nround 1\n')
  })

  test('a point that is never reached is told', async () => {
    const result = await runUntilCrash({ script, args: ['points'], at: 'script.ende' })
    expect(result).toMatchObject({ crashed: false, code: 0, signal: null, hits: ['script.loop', 'script.end'] })
    expect(result.stdout).toContain('exit handler ran')
  })

  test('a process that is killed for another reason has not crashed at its point', async () => {
    const running = runScript({ script, args: ['wait'], at: 'script.end' })
    await running.line('waiting')
    running.kill()
    expect(await running.finished).toMatchObject({ crashed: false, signal: 'SIGKILL', hits: [] })
  })

  test('a point in a process that nobody watches does nothing', () => {
    process.env['WAYBILL_CRASH_AT'] = 'here'
    crashPoint('here')
    delete process.env['WAYBILL_CRASH_AT']
  })

  test('every point of a flow can be reached, and a message is never settled before it has arrived', async () => {
    const points = crashPoints([...publisherPoints('relay'), ...sourcePoints('relay')])
    const results: ScriptResult[] = []
    for (const at of points) results.push(await runUntilCrash({ script, args: ['flow'], at }))
    expect(results.map(({ crashed }) => crashed)).toEqual(points.map(() => true))
    everyPointHit(points, results)
    expect(results[0]!.hits).toEqual(['relay.after-take', 'relay.before-publish'])
    expect(results.at(-1)!.hits).toEqual([
      'relay.after-take',
      'relay.before-publish',
      'relay.after-publish',
      'relay.before-settle',
      'relay.after-settle',
    ])
    const whole = await runScript({ script, args: ['flow'] }).finished
    expect(whole.stdout).toContain('done 1, arrived 1')
  })

  test('a suite fails when a point was never reached, or one is not on its list', () => {
    expect(() => everyPointHit(['a', 'b'], [{ hits: ['a'] }])).toThrow('b was never reached')
    expect(() => everyPointHit(['a'], [{ hits: ['a', 'c'] }])).toThrow('c was reached but is not on the list')
    everyPointHit(['a', 'b'], [{ hits: ['a'] }, { hits: ['b', 'a'] }])
    expect(() => crashPoints(['a', 'a'])).toThrow('unique')
    expect(() => crashPoints(['a#1'])).toThrow('without #')
  })

  test('a paused process is silent, a resumed one goes on', async () => {
    const running = runScript({ script, args: ['wait'] })
    await running.line('tick 1')
    running.pause()
    // What was on its way still arrives. Then nothing does, for as long as ten ticks take.
    let before = ''
    await eventually('it is silent', async () => {
      before = running.stdout
      await new Promise((resolve) => setTimeout(resolve, 200))
      return running.stdout === before
    })
    await new Promise((resolve) => setTimeout(resolve, 200))
    expect(running.stdout).toBe(before)
    running.resume()
    const ticks = before.split('\n').filter((line) => line.startsWith('tick')).length
    await running.line(`tick ${ticks + 2}`)
    running.kill('SIGTERM')
    expect((await running.finished).signal).toBe('SIGTERM')
  })

  test('a script that does not end is killed, and what it printed is told', async () => {
    // Without a compiler: it hangs long before its time is up.
    const hanging = join(mkdtempSync(join(tmpdir(), 'waybill-hang-')), 'hang.mjs')
    writeFileSync(hanging, "console.log('hanging')\nsetInterval(() => undefined, 1000)\n")
    const running = runScript({ script: hanging, timeout: 10_000 })
    await expect(running.finished).rejects.toThrow(/has not ended; it printed: (.|\n)*hanging/)
    expect(() => process.kill(running.pid, 0)).toThrow('ESRCH')
  })

  test('a line that never comes is told when the script has ended', async () => {
    const running = runScript({ script, args: ['points'] })
    await expect(running.line('nonsense')).rejects.toThrow('ended without "nonsense"')
    expect(() => runScript({ script: 'no-such-file.ts' })).toThrow('there is no script')
  })
})
