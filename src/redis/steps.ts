import { redisScript } from '../drivers/redis/connection.ts'
import { lua } from './lua.generated.ts'
import { outboxSteps } from './outbox-scripts.ts'

/**
 * A step of a commit is a queued command, or a function of Lua that runs inside the same script. To add one:
 *
 * 1. write `lua/step-NAME.lua`, with a header (keys, args, returns, invariants), that fills the table `steps`:
 *
 *        steps.NAME = {
 *          -- Optional. Before anything is written, and it must not write: why the whole commit is refused, or nil.
 *          check = function(keys, args) … end,
 *          -- Its answer goes to the step's `onCommit`. An error here leaves what was done before it done.
 *          run = function(keys, args) … end,
 *        }
 *
 *    `keys` and `args` are tables of strings. Local names of the file stay in it.
 * 2. name it in STEPS below, and run `npm run embed`;
 * 3. queue it with `unitOf(tx).add({ step: 'NAME', keys, args, onCommit })`; see unit.ts.
 */
const STEPS = {
  'outbox-enqueue': outboxSteps,
  // With it come those of due-time events.
  'due-record': '',
  'due-reschedule': '',
  'due-cancel': '',
  'due-revoke': '',
} as const satisfies Record<string, string>

export type StepName = keyof typeof STEPS

const steps = ['local steps = {}', ...Object.values<string>(STEPS).map((step) => `do\n${step}\nend`)].join('\n')

/** The server makes every function of a script anew in each call: those of steps are there only for who needs them. */
export const commitScripts = {
  commands: redisScript('commit', `local steps\n${lua.commit}`),
  steps: redisScript('commit', `${steps}\n${lua.commit}`),
} as const
