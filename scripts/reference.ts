/** `npm run reference`: a reference of every public name, from its comments, into the folder `reference`. */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { Application } from 'typedoc'

const root = fileURLToPath(new URL('..', import.meta.url))
const { exports } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as {
  exports: Record<string, string | { default: string }>
}
const entryPoints = Object.values(exports).flatMap((entry) =>
  typeof entry === 'string' ? [] : [join(root, entry.default.replace('./dist/', 'src/').replace(/\.js$/, '.ts'))],
)

const app = await Application.bootstrap({
  name: 'Waybill',
  entryPoints,
  tsconfig: join(root, 'tsconfig.build.json'),
  out: join(root, 'reference'),
  readme: join(root, 'docs/subpaths.md'),
  excludePrivate: true,
  excludeInternal: true,
  disableSources: true,
  // The surface is small on purpose: what a public type is made of need not be public itself.
  validation: { notExported: false, invalidLink: true, notDocumented: false },
})
const project = await app.convert()
if (project !== undefined) {
  app.validate(project)
  await app.generateOutputs(project)
}
process.exitCode = project === undefined || app.logger.hasErrors() || app.logger.hasWarnings() ? 1 : 0
