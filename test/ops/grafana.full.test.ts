import { execFile } from 'node:child_process'
import { mkdtemp, readFile, rm, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { npmPackage } from '../../scripts/services/npm.ts'

/** What Grafana publishes of its dashboards: the types that its own code is made with. */
const SCHEMA = '13.2.3'
const path = (file: string) => fileURLToPath(new URL(`../../${file}`, import.meta.url))
let folder: string
let dashboard: string
beforeAll(async () => {
  const schema = await npmPackage('@grafana/schema', SCHEMA, () => {})
  folder = await mkdtemp(join(tmpdir(), 'waybill-grafana-'))
  await symlink(dirname(dirname(schema)), join(folder, 'node_modules'))
  dashboard = await readFile(path('ops/grafana-dashboard.json'), 'utf8')
}, 300_000)
afterAll(() => rm(folder, { recursive: true, force: true }))

/** What the compiler says of a dashboard, as one that Grafana's code would have. */
async function problems(json: string): Promise<string[]> {
  const types = './node_modules/@grafana/schema/dist/types/raw/dashboard/x/types.gen'
  await writeFile(
    join(folder, 'check.ts'),
    `import type { Dashboard } from '${types}'\nexport const it: Dashboard = ${json}`,
  )
  const args = ['--noEmit', '--strict', '--skipLibCheck', '--module', 'esnext', '--moduleResolution', 'bundler']
  const tsc = path('node_modules/typescript/bin/tsc')
  const { stdout } = await promisify(execFile)(process.execPath, [tsc, ...args, 'check.ts'], {
    cwd: folder,
  }).catch((failed: { stdout: string }) => failed)
  return stdout.split('\n').filter((line) => line !== '')
}

test('the dashboard is one by the schema that Grafana publishes', async () => {
  expect(await problems(dashboard)).toEqual([])
}, 120_000)

test.each([
  ['a property that panels do not have', '"unit": "s"', '"units": "s"', `'"units"' does not exist`],
  ['one that variables do not have', '"multi": true', '"multiple": true', `'"multiple"' does not exist`],
  ['a value of the wrong type', '"id": 1,', '"id": "one",', `'string' is not assignable to type 'number'`],
])(
  'and the check sees %s',
  async (_, find, replace, says) => {
    expect(dashboard).toContain(find)
    expect((await problems(dashboard.replace(find, replace))).join('\n')).toContain(says)
  },
  120_000,
)
