import { packedTarball } from './packed.ts'
import { type Findings, failure, runBin } from './run.ts'

/** Does the packed package keep what its package.json promises, for Node and for every TypeScript resolution? */
export async function exports(): Promise<Findings> {
  const tarball = await packedTarball()
  const [publint, attw] = await Promise.all([
    runBin('publint/src/cli.js', ['run', tarball, '--strict']),
    runBin('@arethetypeswrong/cli/dist/index.js', [tarball, '--profile', 'esm-only', '--format', 'ascii']),
  ])
  return { problems: [...failure('publint', publint).problems, ...failure('attw', attw).problems] }
}
