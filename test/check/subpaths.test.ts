import { expect, test } from 'vitest'
import { pageProblems } from '../../scripts/check/subpaths.ts'

const INDEX = '# Subpaths\n\n- [`shop`](subpaths/shop.md)\n- [`shop/one`](subpaths/one.md)\n'

function page(subpath: string): string {
  const sample = `\`\`\`ts\nimport { a } from '${subpath}'\n\`\`\``
  return `# \`${subpath}\`\n\nFor it.\n\n**When you need it.** Always.\n\n${sample}\n\nRead: [one](../guides/one.md).\n`
}

const SHOP = { path: 'docs/subpaths/shop.md', text: page('shop') }
const ONE = { path: 'docs/subpaths/one.md', text: page('shop/one') }
const without = (part: string) => [SHOP, { ...ONE, text: ONE.text.replace(part, '') }]

test('a page for each subpath, with a sample and a guide, is fine', () => {
  expect(pageProblems(['shop', 'shop/one'], INDEX, [SHOP, ONE])).toEqual([])
})

test('a missing page, one that is left over and one that the index does not name are found', () => {
  expect(pageProblems(['shop', 'shop/one'], INDEX, [SHOP])).toEqual([
    'docs/subpaths/one.md: there is no page on shop/one',
  ])
  expect(pageProblems(['shop'], INDEX, [SHOP, ONE])).toEqual([
    'docs/subpaths/one.md: shop/one is no subpath of the package',
  ])
  expect(pageProblems(['shop', 'shop/one'], INDEX.replace('(subpaths/one.md)', ''), [SHOP, ONE])).toEqual([
    'docs/subpaths/one.md: docs/subpaths.md does not link to it',
  ])
})

test.each([
  ['# `shop/one`\n', 'its title is not shop/one'],
  ['**When you need it.**', 'it does not say when you need it'],
  ["from 'shop/one'", 'no sample imports shop/one'],
  ['](../guides/one.md)', 'it links to no guide'],
])('a page without %j is found', (part, problem) => {
  expect(pageProblems(['shop', 'shop/one'], INDEX, without(part))).toEqual([`docs/subpaths/one.md: ${problem}`])
})
