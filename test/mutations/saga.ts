import type { Mutation } from '../../scripts/mutations/mutation.ts'

const machine = 'test/saga/machine.test.ts'
const claims = 'test/saga/claims.test.ts'
const runner = 'test/saga/runner.test.ts'

/** Faults of sagas: of the machine, of the fence, of what is unknown. */
export const mutations: Mutation[] = [
  {
    name: 'the undo of a refused step runs',
    file: 'src/saga/machine.ts',
    find: `    return status === 'completed' || status === 'unknown' || status === 'compensating'`,
    replace: `    return status === 'completed' || status === 'unknown' || status === 'compensating' || status === 'failed'`,
    test: machine,
    expects: 'its own undo does not run',
  },
  {
    name: 'an intent that was tried and not found is not undone',
    file: 'src/saga/machine.ts',
    find: `return attempts > 0 && planOf(plan, name).kind === 'step'`,
    replace: 'return false',
    test: machine,
    expects: 'with a check it is asked',
  },
  {
    name: 'a late success of a compensated saga is lost',
    file: 'src/saga/machine.ts',
    find: `  if (hasPassed(plan, state)) return []\n`,
    replace: '  return []\n',
    test: machine,
    expects: 'success, not seen before',
  },
  {
    name: 'a second undo has the key of the first',
    file: 'src/saga/state.ts',
    find: 'export function undoKey({ key, undos }: StepState): string {\n',
    replace: `export function undoKey({ key, undos: _ }: StepState): string {\n  const undos = 1\n`,
    test: machine,
    expects: 'the undo key another with each undo',
  },
  {
    name: 'a zombie writes on: the fence forgets the runner',
    file: 'src/memory/sagas.ts',
    find: '(change.runner !== undefined && row.runner !== change.runner)',
    replace: 'false',
    test: 'test/memory/conformance.test.ts',
    expects: 'a write is fenced by the version, and by the runner',
  },
  {
    name: 'a runner takes another token for its own when it reloads',
    file: 'src/saga/work.ts',
    find: 'if (record?.runner !== this.runner) {',
    replace: 'if (record === undefined) {',
    test: claims,
    expects: 'a zombie wakes up',
  },
  {
    name: 'a takeover takes a pending step for one that never ran',
    file: 'src/saga/work.ts',
    find: `{ type: 'hold', reason } : { type: 'takenOver' }`,
    replace: `{ type: 'hold', reason } : undefined`,
    test: claims,
    expects: 'what it was at is unknown',
  },
  {
    name: 'others are claimed beside what was taken over',
    file: 'src/saga/source.ts',
    find: 'if (!empty && now < this.#apart + PATIENCE) return []',
    replace: '',
    test: claims,
    expects: 'others are not claimed beside',
  },
  {
    name: 'a stop goes on with the next step',
    file: 'src/saga/runner.ts',
    find: `    this.#stopping = true\n`,
    replace: '',
    test: claims,
    expects: 'lets the step finish and gives the saga back at once',
  },
  {
    name: 'an outage spends the time of sagas',
    file: 'src/saga/breakers.ts',
    find: 'return !breaker.open',
    replace: 'return true',
    test: runner,
    expects: 'nobody is compensated',
  },
  {
    name: 'an undo does not wait for a run that goes on',
    file: 'src/saga/drive.ts',
    find: `  if (action.do === 'undo') await calls.ended(key, timeout, signal)\n`,
    replace: '',
    test: runner,
    expects: 'an undo waits for a run',
  },
  {
    name: 'a progress write renews the lease each time, so it is never HOT',
    file: 'src/postgres/sql.generated.ts',
    find: 'THEN wake_at\n          ELSE',
    replace: `THEN wake_at + interval '1 ms'\n          ELSE`,
    test: 'test/postgres/conformance.test.ts',
    expects: 'a write keeps the lease as it is',
    needs: ['postgres'],
  },
]
