import { redisScript } from '../drivers/redis/connection.ts'
import { lua } from './lua.generated.ts'

export const scripts = {
  receive: redisScript('receive', lua.receive),
  renew: redisScript('renew', lua.renew),
  release: redisScript('release', lua.release),
} as const

const shared = [lua['outbox-shared'], lua['outbox-enqueue'], lua['due-shared']].join('\n')

/** A key of a shard that never exists, and comes first: the prefix of the other keys is taken from it. */
export const ABSENT = ':absent'

function script(name: string, text: string) {
  return redisScript(name, `local base = string.sub(KEYS[1], 1, -${ABSENT.length + 1})\n${shared}\n${text}`)
}

/** Scripts of the outbox and of due-time events; what each is given and returns is said in its file. */
export const outboxScripts = {
  enqueue: script('outbox-enqueue', 'outbox_check(outbox_at(base))\nreturn outbox_enqueue({ base }, ARGV)'),
  time: script('outbox-time', 'return string.format("%.0f", outbox_now())'),
  claim: script('outbox-claim', lua['outbox-claim']),
  settle: script('outbox-settle', lua['outbox-settle']),
  extend: script('outbox-extend', lua['outbox-extend']),
  recover: script('outbox-recover', lua['outbox-recover']),
  open: script('outbox-open', lua['outbox-open']),
  list: script('outbox-list', lua['outbox-list']),
  show: script('outbox-show', lua['outbox-show']),
  act: script('outbox-act', lua['outbox-act']),
  audits: script('outbox-audits', lua['outbox-audits']),
  clean: script('outbox-clean', lua['outbox-clean']),
  stats: script('outbox-stats', lua['outbox-stats']),
  repair: script('outbox-repair', lua['outbox-repair']),
  dueRecord: script('due-record', 'return due_record({ base }, ARGV)'),
  dueReschedule: script('due-reschedule', 'return due_reschedule({ base }, ARGV)'),
  dueCancel: script('due-cancel', 'return due_cancel({ base }, ARGV)'),
  dueRevoke: script('due-revoke', 'return due_revoke({ base }, ARGV)'),
  dueFind: script('due-find', lua['due-find']),
  dueDecide: script('due-decide', lua['due-decide']),
  dueClean: script('due-clean', lua['due-clean']),
} as const

/** The same functions as steps of a commit; see scripts.ts. */
export const outboxSteps = `${shared}\n${lua['outbox-steps']}`

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
 *    `keys` has the one name that those of its keys begin with, `args` its words. Local names of the file stay in it.
 * 2. name it in STEPS below, and run `npm run embed`;
 * 3. queue it with `unitOf(tx).add({ step: 'NAME', base, keys, args, onCommit })`; see unit.ts.
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
