import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { folder, PAGES, pictures, withCharts } from '../../scripts/pictures.ts'
import { STATES } from '../../src/outbox/admin.ts'
import { read } from './support.ts'

/** The words of a union type, by the source that declares it. */
const words = (file: string, type: string): string[] => {
  const [, body] = new RegExp(`export type ${type} =([^=]*?)\\n\\n`).exec(read(file))!
  return [...body!.matchAll(/'(\w+)'/g)].map(([, word]) => word!)
}

describe('pictures of the docs', () => {
  test('are what `npm run pictures` writes, and none is left over', () => {
    const drawn = pictures()
    expect(readdirSync(folder).sort()).toEqual([...drawn.keys()].sort())
    for (const [name, svg] of drawn) expect(readFileSync(join(folder, name), 'utf8'), name).toBe(svg)
  })

  test('show every state of an event', () => {
    for (const state of STATES) expect(pictures().get('event-states.svg')).toContain(state)
  })

  test('show every state of a saga', () => {
    const states = words('src/saga/state.ts', 'SagaStatus')
    expect(states).toContain('compensated')
    for (const state of states) expect(pictures().get('saga-states.svg')).toContain(`>${state}<`)
  })

  test.each(PAGES)('%s shows the charts there are', (page) => {
    expect(read(page)).toBe(withCharts(page, read(page), pictures()))
    expect(withCharts(page, read(page), new Map([['relay.svg', '']]))).toMatch(
      /<!-- charts: relay.* -->\n!\[Events per second.*\]\((docs\/)?pictures\/relay.svg\)\n<!-- end -->/,
    )
  })

  test('are shown by a page', () => {
    const pages = ['README.md', 'docs/guides/dead-letters.md', 'docs/guides/sagas.md', 'docs/benchmarks.md'].map(read)
    for (const name of pictures().keys()) expect(pages.join('\n'), name).toContain(`pictures/${name}`)
  })
})
