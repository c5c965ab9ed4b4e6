import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { describe, expect, test } from 'vitest'

const root = fileURLToPath(new URL('../..', import.meta.url))
const read = (path: string) => readFileSync(join(root, path), 'utf8')
const decisions = readdirSync(join(root, 'docs/decisions')).map((name) => `docs/decisions/${name}`)
const guides = readdirSync(join(root, 'docs/guides')).map((name) => `docs/guides/${name}`)
const docs = ['docs/internals.md', 'docs/readiness.md', 'docs/telemetry.md']
const pages = ['README.md', 'CHANGELOG.md', 'CONTRIBUTING.md', ...docs, ...guides, ...decisions]

describe('links', () => {
  test.each(pages)('%s links to files that exist', (page) => {
    const links = [...read(page).matchAll(/\]\(([^)\s]+)\)/g)].map(([, target]) => target!.replace(/#.*$/, ''))
    const local = links.filter((target) => target !== '' && !/^https?:/.test(target))
    expect(local.filter((target) => !existsSync(join(root, dirname(page), target)))).toEqual([])
  })
})

describe('decisions', () => {
  test.each(decisions)('%s is short, with the problem and the decision', (path) => {
    const text = read(path)
    expect(text.split('\n').length).toBeLessThanOrEqual(26)
    for (const part of ['Problem', 'Decision']) expect(text).toContain(`**${part}`)
  })
})
