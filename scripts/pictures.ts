/**
 * `npm run pictures`: writes docs/pictures. Charts are made of docs/figures/NAME.json, the last line of
 * `npm run bench -- NAME --json`, and shown by the pages that have a place for them; a test compares what is there with what
 * this would write.
 */
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { dirname, join, relative } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { chart, charts } from './pictures/charts.ts'
import { eventStates, sagaStates, way } from './pictures/drawings.ts'

export const folder = fileURLToPath(new URL('../docs/pictures', import.meta.url))

/** Every picture, by its file name. */
export function pictures(): Map<string, string> {
  const all = new Map([
    ['way.svg', way()],
    ['event-states.svg', eventStates()],
    ['saga-states.svg', sagaStates()],
  ])
  for (const name of Object.keys(charts)) {
    const drawn = chart(name)
    if (drawn !== undefined) all.set(`${name}.svg`, drawn)
  }
  return all
}

/** Pages with a place for charts: `<!-- charts: relay -->` and what is between it and `<!-- end -->`. */
export const PAGES = ['README.md', 'docs/benchmarks.md'] as const

const root = fileURLToPath(new URL('..', import.meta.url))

/** The page with the charts there are, in the places it has for them. */
export function withCharts(page: string, text: string, drawn: ReadonlyMap<string, string>): string {
  const to = relative(dirname(join(root, page)), folder)
  return text.replace(/(<!-- charts: ([\w, ]+) -->\n).*?(<!-- end -->)/gs, (_, begin, names: string, end) => {
    const there = names.split(', ').filter((name) => drawn.has(`${name}.svg`))
    return begin + there.map((name) => `![${charts[name]!.title}](${to}/${name}.svg)\n`).join('\n') + end
  })
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
  mkdirSync(folder, { recursive: true })
  for (const [name, svg] of pictures()) {
    writeFileSync(join(folder, name), svg)
    console.log(`docs/pictures/${name}`)
  }
  for (const page of PAGES) {
    const file = join(root, page)
    writeFileSync(file, withCharts(page, readFileSync(file, 'utf8'), pictures()))
  }
}
