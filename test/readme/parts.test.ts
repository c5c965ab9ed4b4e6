import { readdirSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { pictures } from '../../scripts/pictures.ts'
import { read, root } from './support.ts'

const page = read('README.md')
/** From a heading to the next one. */
const section = (title: string) => page.split(/^## /m).find((part) => part.startsWith(`${title}\n`)) ?? ''
const rows = (text: string) => text.split('\n').filter((line) => /^\| (?!\|)/.test(line))

describe('README.md', () => {
  test('tells the problem in four sentences, and shows the two commands and the picture of the whole', () => {
    const [, problem] = page.split('\n\n')
    expect(problem!.match(/\.(\s|$)/g)).toHaveLength(4)
    const before = page.slice(0, page.indexOf('\n## '))
    expect(before).toMatch(/clone this repository first:\n\n```sh\nnpm ci && npm run demo\b/)
    expect(before).toContain('docs/pictures/way.svg')
  })

  test('has a page for everything in the box', () => {
    const [, ...box] = rows(section('What is in the box'))
    expect(box.length).toBeGreaterThanOrEqual(10)
    for (const row of box) expect(row).toMatch(/\]\(docs\/\S+\.md\)/)
  })

  test('tells what is not promised, which versions work, and who is the better choice', () => {
    expect(section('What is promised')).toMatch(/\*\*Not promised:\*\*/)
    const versions = section('What it works with')
    for (const name of ['Node', 'TypeScript', 'PostgreSQL', 'Redis', 'RabbitMQ', 'NATS', 'Kafka']) {
      expect(versions).toContain(name)
    }
    expect(page).toContain('ESM only')
    const others = section('Something else may suit you better')
    for (const name of ['pg-boss', 'graphile-worker', 'BullMQ', 'Debezium', 'Temporal', 'DBOS', 'MassTransit']) {
      expect(others).toContain(name)
    }
    expect(others).toContain('**Do not use it**')
  })
})

test('every picture is for light and dark pages, and has a title', () => {
  for (const [name, svg] of pictures()) expect(svg, name).toMatch(/<title>.+<\/title>.*prefers-color-scheme: dark/s)
})

test('docs/guides/README.md leads to every guide', () => {
  const list = read('docs/guides/README.md')
  const guides = readdirSync(join(root, 'docs/guides')).filter((name) => name !== 'README.md')
  for (const guide of guides) expect(list).toContain(`](${guide})`)
})

test('the README of the order service explains every file of it, in a page', () => {
  const text = read('examples/order-service/README.md')
  const files = readdirSync(join(root, 'examples/order-service')).filter((name) => name !== 'README.md')
  for (const file of files) expect(rows(text).join('\n')).toContain(`[${file}](${file})`)
  expect(text.split('\n').length).toBeLessThanOrEqual(80)
})
