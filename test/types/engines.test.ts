import { expect, test } from 'vitest'
import { read } from '../readme/support.ts'

test('the oldest Node is the one that has all we call, and is the same wherever it is told', () => {
  const { engines } = JSON.parse(read('package.json')) as { engines: { node: string } }
  // `AbortSignal.any` came with 20.3.
  expect(engines.node).toBe('>=20.3')
  const lock = JSON.parse(read('package-lock.json')) as { packages: Record<string, { engines?: object }> }
  expect(lock.packages['']!.engines).toEqual(engines)
  for (const page of ['README.md', 'CONTRIBUTING.md']) expect(read(page), page).toContain('Node 20.3 or later')
})
