import { readFileSync } from 'node:fs'
import { expect, test } from 'vitest'
import { METRICS } from '../../src/observability/index.ts'

const read = (path: string) => readFileSync(new URL(`../../${path}`, import.meta.url), 'utf8')
const alerts = read('ops/alerts.yml')
const dashboard = JSON.parse(read('ops/grafana-dashboard.json')) as {
  schemaVersion: number
  templating: { list: { name: string; type: string }[] }
  panels: {
    id: number
    title: string
    type: string
    datasource: object
    gridPos: { x: number; y: number; w: number; h: number }
    targets: { refId: string; expr: string; legendFormat: string }[]
  }[]
}

/** What a scrape has of each metric. */
const SERIES = new Map(
  METRICS.flatMap(({ name, kind, labels }) => {
    const names = kind === 'histogram' ? [`${name}_bucket`, `${name}_sum`, `${name}_count`] : [name]
    return names.map((series) => [series, [...labels, 'instance', ...(kind === 'histogram' ? ['le'] : [])]] as const)
  }),
)

const WORDS = /\b(?:outbox|waybill)_[a-z_]+\b/g

const expressions = [
  ...[...alerts.matchAll(/^ +expr: (.+)$/gm)].map(([, expr]) => expr!),
  ...dashboard.panels.flatMap(({ targets }) => targets.map(({ expr }) => expr)),
]

test('every metric that a rule or a panel uses exists, and has the labels it is grouped by', () => {
  expect(expressions.length).toBeGreaterThan(25)
  for (const expr of expressions) {
    const used = expr.match(WORDS) ?? []
    expect(used.length, expr).toBeGreaterThan(0)
    for (const name of used) expect([...SERIES.keys()], expr).toContain(name)
    for (const [, by] of expr.matchAll(/by \(([^)]+)\)/g)) {
      for (const label of by!.split(', ')) for (const name of used) expect(SERIES.get(name), expr).toContain(label)
    }
  }
})

test('the dashboard is one that Grafana takes: panels that do not overlap, each with its data source and queries', () => {
  expect(dashboard.schemaVersion).toBeGreaterThanOrEqual(36)
  const variables = dashboard.templating.list.map(({ name }) => name)
  const cells = new Set<string>()
  for (const { id, type, title, datasource, gridPos, targets } of dashboard.panels) {
    // biome-ignore lint/suspicious/noTemplateCurlyInString: a variable of Grafana
    expect([type, datasource], title).toEqual(['timeseries', { type: 'prometheus', uid: '${datasource}' }])
    expect(
      dashboard.panels.filter((other) => other.id === id),
      title,
    ).toHaveLength(1)
    expect(new Set(targets.map(({ refId }) => refId)).size, title).toBe(targets.length)
    expect(gridPos.x + gridPos.w, title).toBeLessThanOrEqual(24)
    for (let x = gridPos.x; x < gridPos.x + gridPos.w; x++) {
      for (let y = gridPos.y; y < gridPos.y + gridPos.h; y++) {
        expect(cells.has(`${x} ${y}`), title).toBe(false)
        cells.add(`${x} ${y}`)
      }
    }
    for (const { expr, legendFormat } of targets) {
      for (const [, variable] of expr.matchAll(/\$(\w+)/g)) expect(variables, title).toContain(variable)
      // A scrape comes every minute where people leave Prometheus as it is: a rate needs two.
      for (const [, minutes] of expr.matchAll(/\[(\d+)m\]/g)) expect(Number(minutes), title).toBeGreaterThanOrEqual(5)
      expect(legendFormat, title).not.toBe('')
    }
  }
})

test('the oldest age comes first, then dead, then paused, then depth', () => {
  const order = ['oldest', 'dead', 'paused', 'depth']
  const titles = dashboard.panels.slice(0, 4).map(({ title }) => title.toLowerCase())
  titles.forEach((title, i) => {
    expect(title).toContain(order[i])
  })
  const names = [...alerts.matchAll(/alert: Outbox(\w+)/g)].map(([, name]) => name!.toLowerCase())
  const places = order.map((word) => names.findIndex((name) => name.includes(word)))
  expect(places).toEqual([...places].sort((a, b) => a - b))
  expect(places).not.toContain(-1)
})

test('every alert says what to do, at a place of the guide that exists', () => {
  const headings = [...read('docs/guides/watching.md').matchAll(/^##+ (.+)$/gm)].map(([, text]) =>
    text!
      .toLowerCase()
      .replaceAll(/[^a-z0-9 -]/g, '')
      .replaceAll(' ', '-'),
  )
  const actions = [...alerts.matchAll(/action: 'docs\/guides\/watching\.md#([a-z-]+)'/g)].map(([, anchor]) => anchor!)
  expect(actions).toHaveLength([...alerts.matchAll(/alert:/g)].length)
  for (const anchor of actions) expect(headings).toContain(anchor)
})
